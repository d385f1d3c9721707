"""A message is found by its id, in a directory and at a server, at any position after the time of its id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner

from tests.metaq.servers import log_at, served
from txmsg.errors import InvalidMessage, ProtocolError
from txmsg.message import message_id
from txmsg.metaq.finding import CLOCKS_APART_S, search_id
from txmsg.metaq.format.frame import Compression, FrameColumns, encode, hole
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.location import open_log
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Append
from txmsg.ops.cli.main import main
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQ

AT_S = 1_780_000_000
"""Time at which ids are generated."""
CLOCKS_S = int(CLOCKS_APART_S)


def made_at(s: int, number: int) -> UUID:
    """Return a UUIDv7 of this time."""
    return UUID(int=(s * 1000) << 80 | 7 << 76 | 2 << 62 | number)


def append_of(queue: int, ids: list[UUID], *, stored_s: int, n: list[int] | None = None, **kwargs: object) -> Append:
    columns = FrameColumns(
        [each.hex.encode() for each in ids],
        [stored_s * 1_000_000],
        transaction_id=b"".join(each.bytes for each in ids),
        n=n or [],
    )
    return Append("t", queue, encode(columns, **kwargs))  # type: ignore[arg-type]


EARLY, LATE, OLD = (made_at(AT_S, number) for number in (1, 2, 3))
PAIR = made_at(AT_S + 5, 4)


@pytest.fixture(scope="module", params=["directory", "server"])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogAccess]:
    """Two queues: one compressed and with a hole, one with several messages of a transaction."""
    root = tmp_path_factory.mktemp("log")
    with open_log(root, append=True) as access:
        access.append([append_of(0, [OLD], stored_s=AT_S - CLOCKS_S - 1)])
        for each in range(3):
            other = made_at(AT_S, 100 + each)
            access.append([append_of(0, [other] * 5, stored_s=AT_S, compression=Compression.LZ4)])
        access.append(
            [Append("t", 0, hole(20, AT_S * 1_000_000)), Append("t", 1, encode(FrameColumns([b"no id"], [AT_S])))]
        )
        access.append([append_of(0, [made_at(AT_S, 9), EARLY], stored_s=AT_S - CLOCKS_S + 1)])
        access.append([append_of(1, [PAIR] * 3, stored_s=AT_S + 6, n=[0, 1, 2])])
        access.append([append_of(1, [LATE], stored_s=AT_S + 86400)])
    if request.param == "directory":
        with open_log(root) as access:
            yield access
    else:
        with served(MetaQConfig(data_dir=root, listen="127.0.0.1:0")) as address, log_at(address) as access:
            yield access


def place(log: LogAccess, transaction_id: UUID, n: int = 0) -> tuple[int | None, int | None] | None:
    found = log.find_id("t", message_id(transaction_id, n))
    if found is None:
        return None
    assert (found.id_bytes, found.n, found.body) == (transaction_id.bytes, n, transaction_id.hex.encode())
    return found.queue, found.offset


def test_a_message_is_found_by_its_id(log: LogAccess) -> None:
    assert place(log, EARLY) == (0, 21), "stored by a clock that was behind"
    assert place(log, LATE) == (1, 4), "stored a day later, as a message of a transaction that was long undecided"
    assert [place(log, PAIR, n) for n in range(4)] == [(1, 1), (1, 2), (1, 3), None]


def test_missing_message_is_not_found(log: LogAccess) -> None:
    assert place(log, made_at(AT_S, 5)) is None
    assert place(log, OLD) is None, "no clock is that far ahead, so that part is not read"
    assert log.find_id("unknown", message_id(EARLY, 0)) is None
    with pytest.raises(InvalidMessage, match="not of the form UUID"):
        log.find_id("t", str(EARLY))


def test_search_can_be_continued_step_by_step(log: LogAccess) -> None:
    at: dict[LogQueue, int] = {}
    steps = 0
    while not (step := search_id(log, "t", message_id(LATE, 0), at, size_bytes=1)).found:
        assert step.following != at
        at = dict(step.following)
        steps += 1
    assert (step.found.queue, step.found.offset) == (1, 4)
    assert steps > 0
    assert step.is_done


def test_server_refuses_to_continue_a_search_in_another_topic(log: LogAccess) -> None:
    if isinstance(log, LocalLog):
        return
    assert isinstance(log, RemoteLog)
    request = pb.FindInLogRequest(
        topic="t", id=message_id(EARLY, 0), following=[pb.QueueOffsets(topic="u", queue=[0], offset=[0])]
    )
    with pytest.raises(ProtocolError, match="another topic"):
        log._ask_server(MetaQ.find, request)


def test_command_finds_messages_by_id_and_by_key(tmp_path: Path) -> None:
    with open_log(tmp_path, append=True) as access:
        columns = FrameColumns([b"paid"], [AT_S * 1_000_000], transaction_id=EARLY.bytes, key=["42"])
        access.append([Append("t", 0, encode(columns))])

    def find(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["metaq", "find", "t", "--log", str(tmp_path), *words])
        return result.exit_code, result.output

    code, output = find("--id", message_id(EARLY, 0), "--json")
    [found] = json.loads(output)["messages"]
    assert (code, found["offset"], found["body"], found["id"]) == (0, 0, "paid", message_id(EARLY, 0))
    assert find("--key", "42")[1].endswith("key=42 paid\n")
    assert find("--id", message_id(LATE, 0)) == (1, f"topic 't' of {tmp_path} keeps no such message\n")
    assert find("--key", "42", "--id", "x")[0] == find()[0] == 2
