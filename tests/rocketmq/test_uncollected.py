"""References left by calls: none that only a garbage collection frees, as each may hold megabytes.

A gateway collects seldom, and its calls are few objects with large bodies.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import RstStreamFrame

from tests.living import living
from tests.rocketmq.http2 import data, served
from tests.unit import test_client_sender as broker
from tests.unit.test_client_sender import Step, fail_item, lose_reply, refuse
from tests.waiting import until_async
from txmsg.client.channel import Brokers
from txmsg.client.sending.batch import SendEntry
from txmsg.errors import TxmsgError
from txmsg.message import Message
from txmsg.rocketmq.grpc.call import GrpcCall
from txmsg.rocketmq.senders import Senders
from txmsg.wire.v1.txmsg_pb2 import SendReply


@contextmanager
def uncollected() -> Iterator[Callable[[], list[object]]]:
    """Disable garbage collection within the block. Yields a function that returns calls still referenced or failed."""

    def kept() -> list[object]:
        return [*living(SendEntry, GrpcCall), *filter(_has_failed, living(asyncio.Future))]

    gc.collect()
    gc.disable()
    try:
        yield kept
    finally:
        gc.enable()


def _has_failed(future: asyncio.Future[object]) -> bool:
    return future.done() and not future.cancelled() and isinstance(future.exception(), TxmsgError)


async def _turns() -> None:
    """Run turns of the event loop, in which ended calls are released."""
    for _ in range(10):
        await asyncio.sleep(0)


async def _send(senders: Senders, *, half: bool) -> None:
    """Send a message or half message, and forget its error."""
    with suppress(TxmsgError):
        await senders.send_message(bytes(16), Message("orders", b"x"), born_at_us=1, half=half)


@pytest.mark.parametrize(
    "steps",
    [
        [refuse("permission_denied")],
        [fail_item(0, "unknown_topic", SendReply)],
        [refuse("broker_unavailable"), lose_reply],
        [refuse("overloaded"), fail_item(0, "broker_unavailable", SendReply), refuse("unknown_topic")],
    ],
)
async def test_failed_send_leaves_no_references(steps: list[Step]) -> None:
    script = broker.Script()
    async with broker.served(script) as address:
        brokers = Brokers([address])
        senders = Senders(brokers, timeout_s=20)
        with uncollected() as kept:
            for half in (False, True):
                script.steps.extend(steps)
                await _send(senders, half=half)
            await senders.drain()
            await _turns()
            assert kept() == []
        await brokers.close()


async def test_send_to_an_unreachable_broker_leaves_no_references() -> None:
    brokers = Brokers(["unix:/nowhere"])
    senders = Senders(brokers, timeout_s=0.5)
    with uncollected() as kept:
        for half in (False, True):
            await _send(senders, half=half)
        await senders.drain()
        await _turns()
        assert kept() == []
    await brokers.close()


async def test_call_cancelled_by_its_client_leaves_no_references() -> None:
    async with served() as place:
        peer = await place.connect()
        with uncollected() as kept:
            peer.send(peer.headers(1), data(1, b"\0\0\0\xff\xff" + bytes(10_000), ends=False))
            await until_async(lambda: place.port.requests_size_bytes > 10_000)
            peer.send(RstStreamFrame(1, error_code=ErrorCodes.CANCEL))
            await until_async(lambda: not place.port.calls)
            await _turns()
            assert kept() == []
            assert place.port.requests_size_bytes == 0
