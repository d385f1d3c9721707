"""Appends whose few bytes unpack to hundreds of megabytes are charged to their sender only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import pyarrow as pa
import pytest
from google_crc32c import value as crc32c

from tests.metaq.logs import batch
from tests.metaq.servers import log_at, served
from tests.raw_client import RawClient
from tests.waiting import until_async
from txmsg.errors import MessageTooLarge, Overloaded, ProtocolError
from txmsg.metaq.format.frame import FRAME_SIZE_BYTES_MAX, Compression, FrameColumns, Payload, encode
from txmsg.metaq.protocol import batch_of_append
from txmsg.metaq.server.readers import FREE_RATIO, SWELL_BYTES_PER_S, ReaderThreads, swell_bytes
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Append
from txmsg.wire.access.limits import NO_LIMITS, Usage
from txmsg.wire.access.principal import ANYONE, Principal
from txmsg.wire.caller import Caller, answering
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQ

BOMB = encode(FrameColumns([bytes(FRAME_SIZE_BYTES_MAX - 4096)], [1]), Compression.ZSTD)
BOMBS = 100


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with served(MetaQConfig(data_dir=tmp_path / "log", listen="127.0.0.1:0")) as address:
        yield address


def request(sequence: int, *payloads: Payload) -> bytes:
    appends = [Append("t", 0, payload) for payload in payloads]
    head = pb.AppendHead(
        producer_id=b"hostile producer", sequence=sequence, settled=1, batches=map(batch_of_append, appends)
    )
    return pb.AppendRequest(head=head, data=b"".join(bytes(each.parts[0]) for each in payloads)).SerializeToString()


def test_highly_compressed_append_is_charged_to_its_sender_only(address: str) -> None:
    assert BOMB.size_bytes < 16 * 1024
    with RawClient(address) as hostile, log_at(address) as log:
        calls = [hostile.begin(MetaQ.append.name, request(number, BOMB)) for number in range(1, BOMBS + 1)]
        log.append([batch("other", 0, 0, 10)])
        assert log.describe().appending_bytes < FRAME_SIZE_BYTES_MAX
        errors = [hostile.answer(call).error for call in calls]
    refused = [error for error in errors if error is not None]
    assert len(refused) >= BOMBS - 10
    assert all(isinstance(error, Overloaded) for error in refused)
    assert "become more than" in str(refused[0])


def test_append_can_be_as_large_unpacked_as_packed(address: str) -> None:
    with RawClient(address) as hostile, log_at(address) as log:
        error = hostile.answer(hostile.begin(MetaQ.append.name, request(1, BOMB, BOMB))).error
        assert isinstance(error, MessageTooLarge)
        assert "when it is unpacked" in str(error)
        assert log.topics() == {}


def hostile(stored: bytes, raw_size_bytes: int, compression: Compression) -> Payload:
    return BOMB._replace(
        parts=(stored,),
        size_bytes=len(stored),
        raw_size_bytes=raw_size_bytes,
        crc=crc32c(stored),
        compression=compression,
    )


SMALL = encode(FrameColumns([bytes(100_000)], [1]), Compression.ZSTD)
ZSTD, LZ4 = bytes(SMALL.parts[0]), pa.compress(bytes(100_016), codec="lz4", asbytes=True)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(hostile(ZSTD, SMALL.raw_size_bytes - 1, Compression.ZSTD), id="it becomes more than it declares"),
        pytest.param(hostile(ZSTD, FRAME_SIZE_BYTES_MAX, Compression.ZSTD), id="it declares more than it becomes"),
        pytest.param(hostile(ZSTD + ZSTD, 2 * SMALL.raw_size_bytes, Compression.ZSTD), id="it has two frames"),
        pytest.param(hostile(LZ4, FRAME_SIZE_BYTES_MAX, Compression.LZ4), id="LZ4 cannot become so much"),
        pytest.param(hostile(LZ4, 100_017, Compression.LZ4), id="LZ4 becomes less"),
        pytest.param(
            hostile(b"\x28\xb5\x2f\xfd\x00\xff" + ZSTD[6:], SMALL.raw_size_bytes, Compression.ZSTD),
            id="it says no size, and asks for a window of 4 TiB",
        ),
    ],
)
def test_hostile_frames_are_refused_and_nothing_is_appended(address: str, payload: Payload) -> None:
    with RawClient(address) as client, log_at(address) as log:
        error = client.answer(client.begin(MetaQ.append.name, request(1, payload))).error
        assert isinstance(error, ProtocolError | Overloaded)
        assert log.topics() == {}


def test_normal_compression_ratio_is_not_charged() -> None:
    assert swell_bytes(1000, FREE_RATIO * 1000) == 0
    assert swell_bytes(1000, FREE_RATIO * 1000 + 1) == 1


# ---- threads that are shared


class User:
    """The user of a call."""

    def __init__(self, name: str) -> None:
        self.caller, self.principal, self.usage = Caller(name, ""), ANYONE, Usage(name, NO_LIMITS)

    caller: Caller
    principal: Principal
    usage: Usage


async def as_user(user: User, work: object) -> object:
    context = copy_context()
    context.run(answering.set, user)
    return await asyncio.get_running_loop().create_task(work, context=context)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["run", "unpack"])
async def test_one_user_cannot_occupy_all_threads(kind: str) -> None:
    go_on, now = threading.Event(), 0.0
    with ThreadPoolExecutor(4) as executor:
        readers = ReaderThreads(executor, 4, clock=lambda: now)
        greedy = User("greedy")
        waiting = [asyncio.ensure_future(as_user(greedy, getattr(readers, kind)(go_on.wait))) for _ in range(20)]
        try:
            assert await as_user(User("other"), readers.run(lambda: 7)) == 7
            assert await as_user(User("other"), readers.unpack(lambda: 8)) == 8
            assert await readers.run(lambda: 9) == 9
            assert not any(each.done() for each in waiting)
        finally:
            go_on.set()
        assert all(await asyncio.gather(*waiting))


async def test_unpacking_for_some_users_leaves_threads_for_others() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(4) as executor:
        readers = ReaderThreads(executor, 4, clock=lambda: 0.0)
        users = [User(str(number)) for number in range(5)]
        waiting = [asyncio.ensure_future(as_user(user, readers.unpack(go_on.wait))) for user in users for _ in range(5)]
        try:
            assert await as_user(User("other"), readers.run(lambda: 7)) == 7
            assert await as_user(users[0], readers.run(lambda: 8)) == 8
        finally:
            go_on.set()
        await asyncio.gather(*waiting)


async def test_cancelled_calls_hold_their_share_until_their_threads_end() -> None:
    go_on, begun = threading.Event(), []

    def work() -> None:
        begun.append(1)
        go_on.wait()

    with ThreadPoolExecutor(4) as executor:
        readers = ReaderThreads(executor, 4, clock=lambda: 0.0)
        try:
            for number in range(6):
                call = asyncio.ensure_future(as_user(User(str(number)), readers.unpack(work)))
                if number < 2:
                    await until_async(lambda number=number: len(begun) > number)  # type: ignore[misc]
                else:
                    await asyncio.wait([call], timeout=0.05)
                call.cancel()
                await asyncio.wait([call])
            assert len(begun) == 2
            assert await as_user(User("other"), readers.run(lambda: 7)) == 7
        finally:
            go_on.set()
        assert await as_user(User("0"), readers.unpack(lambda: 8)) == 8


async def test_all_connections_of_a_user_share_its_charge_which_expires() -> None:
    now = 0.0
    with ThreadPoolExecutor(1) as executor:
        readers = ReaderThreads(executor, 4, clock=lambda: now)
        first, second = User("a"), User("b")
        await as_user(first, readers.pay(FRAME_SIZE_BYTES_MAX))
        with pytest.raises(Overloaded):
            await as_user(first, readers.pay(1))
        await as_user(second, readers.pay(FRAME_SIZE_BYTES_MAX))
        now += FRAME_SIZE_BYTES_MAX / SWELL_BYTES_PER_S
        await as_user(first, readers.pay(1))
