"""Talks to brokers: one gRPC channel each, the next one when one fails, and every gRPC error translated here.

Any broker takes any message, so a call goes to the current broker until it fails. gRPC reconnects by itself; what is
tried again, and for how long, is `retrying`'s to say. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from tenacity import AsyncRetrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

from txmsg.client.process import claim_process
from txmsg.errors import BrokerUnavailable, OutcomeUnknown, ProtocolError, TxmsgError
from txmsg.wire.codec import CHANNEL_OPTIONS, error_of_rpc
from txmsg.wire.v1.txmsg_pb2_grpc import NotifyStub

__all__ = ["RETRYABLE", "Brokers", "retrying", "translated", "was_told"]

RETRYABLE = (BrokerUnavailable, OutcomeUnknown)

_ATTEMPT_S_MIN = 0.25
_OPTIONS = [
    *CHANNEL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # a broker is a neighbour: a proxy meant for the web must not catch it
    ("grpc.use_local_subchannel_pool", 1),
]


class Brokers:
    """The brokers of one producer or consumer. Belongs to the loop it is first used on."""

    def __init__(self, addresses: Sequence[str]) -> None:
        claim_process()
        self.addresses = list(addresses)
        self._channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for address in addresses]
        self._stubs: list[Any] = [_stub_of(channel) for channel in self._channels]
        self._current = 0

    def stub(self, index: int) -> Any:
        """The stub of one broker, for calls that mean that one only (long polls, the attach stream)."""
        return self._stubs[index]

    async def call(self, method: str, request: object, *, timeout_s: float) -> Any:
        """One attempt at the current broker. If it fails for want of a broker, the next attempt goes to the next one.

        Raises BrokerUnavailable when the request certainly was not carried out, OutcomeUnknown when it may have been.
        """
        index = self._current
        share_s = timeout_s / min(len(self._stubs), 3)  # a broker that hangs leaves time for another
        try:
            return await getattr(self._stubs[index], method)(request, timeout=share_s)
        except grpc.aio.AioRpcError as exc:
            error = translated(exc, self.addresses[index])
            if isinstance(error, RETRYABLE) and self._current == index:
                self._current = (index + 1) % len(self._stubs)
            raise error from exc

    async def close(self) -> None:
        """Closes all channels; calls in flight fail. Closing twice is fine."""
        await asyncio.gather(*(channel.close() for channel in self._channels))


def _stub_of(channel: grpc.aio.Channel) -> Any:
    stub: Any = NotifyStub  # generated code carries no types
    return stub(channel)


def retrying(timeout_s: float) -> AsyncRetrying:
    """Tries again what `Brokers.call` says is worth it: random exponential pauses, no attempt past the deadline.

    Nor one just before it: cut off, it would make a certain failure an unknown one.
    """
    return AsyncRetrying(
        retry=retry_if_exception_type(RETRYABLE),
        wait=wait_random_exponential(multiplier=0.02, max=1.0),
        stop=stop_before_delay(max(timeout_s - _ATTEMPT_S_MIN, timeout_s / 2)),
        reraise=True,
    )


def was_told(error: TxmsgError) -> bool:
    """Whether a broker said so, and not the transport for want of an answer."""
    cause = error.__cause__
    return not isinstance(cause, grpc.aio.AioRpcError) or error_of_rpc(cause, broker="") is not None


def translated(exc: grpc.aio.AioRpcError, address: str) -> TxmsgError:
    """The txmsg error for a failed call. A status without our code tells only how far the request got."""
    told = error_of_rpc(exc, broker=address)
    if told is not None:
        return told
    details = exc.details() or exc.code().name
    if exc.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details.lower():
        return BrokerUnavailable(f"broker {address} cannot be reached ({details}): check the address and that it runs")
    if exc.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return OutcomeUnknown(f"broker {address} did not answer ({details}): the request may have been carried out")
    return ProtocolError(f"broker {address} failed with {exc.code().name}: {details}")
