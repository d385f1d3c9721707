"""Calls a MetaQ server and waits for the answer, over and over until a deadline: each call is safe to repeat.

One gRPC channel, which reconnects by itself; threads share it. Every gRPC error is translated here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
from tenacity import Retrying, retry_if_exception_type, sleep_using_event, stop_before_delay, wait_random_exponential

from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown, ProtocolError, TxmsgError
from txmsg.runtime.process import check_not_forked, claim_process
from txmsg.wire.codec import CHANNEL_OPTIONS, details_of, error_of_rpc
from txmsg.wire.v1.metaq_pb2_grpc import MetaQGroupsStub, MetaQStub

T = TypeVar("T")

_OPTIONS: Final = [
    *CHANNEL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # a server is a neighbour: a proxy meant for the web must not catch it
    ("grpc.use_local_subchannel_pool", 1),
]
_RETRYABLE = (BrokerUnavailable, OutcomeUnknown)
_ATTEMPT_S_MIN = 0.1


class Server:
    """A MetaQ server, as this process reaches it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.closed = threading.Event()
        self._pid = claim_process()
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        stub: Any = MetaQStub  # generated code carries no types
        group_stub: Any = MetaQGroupsStub
        self.log: Any = stub(self._channel)
        self.groups: Any = group_stub(self._channel)

    def close(self) -> None:
        """Calls under way fail. Closing twice is fine."""
        self.closed.set()
        self._channel.close()

    def ask(
        self,
        attempt: Callable[[float, bool], T],
        *,
        timeout_s: float,
        attempt_s: float | None = None,
        changes: bool = False,
    ) -> T:
        """What `attempt(timeout_s, is_repeat)` returns, tried until it answers, refuses, or the time is over.

        changes: what may have been carried out when the time is over is OutcomeUnknown, not BrokerUnavailable.
        is_repeat: an earlier attempt may have been carried out.
        """
        check_not_forked(self._pid)
        unknown: OutcomeUnknown | None = None
        deadline = time.monotonic() + timeout_s
        attempts = Retrying(
            retry=retry_if_exception_type(_RETRYABLE),
            wait=wait_random_exponential(multiplier=0.02, max=1.0),
            stop=stop_before_delay(timeout_s),
            sleep=sleep_using_event(self.closed),
            reraise=True,
        )
        try:
            for trial in attempts:
                with trial:
                    left_s = max(_ATTEMPT_S_MIN, deadline - time.monotonic())
                    try:
                        return self._attempt(attempt, min(left_s, attempt_s or left_s), unknown is not None)
                    except OutcomeUnknown as exc:
                        unknown = exc
                        raise
        except _RETRYABLE as exc:
            if unknown is None:
                raise
            if changes:
                raise unknown from exc
            raise BrokerUnavailable(f"MetaQ server {self.address} gave no answer in {timeout_s:g} s: {exc}") from exc
        raise AssertionError("the last attempt raises or returns")

    def _attempt(self, attempt: Callable[[float, bool], T], timeout_s: float, is_repeat: bool) -> T:
        self.require_open()
        try:
            return attempt(timeout_s, is_repeat)
        except grpc.RpcError as exc:
            self.require_open()
            raise self._translated(exc) from exc
        except ValueError:  # what gRPC raises for a call on a channel that was closed meanwhile
            self.require_open()
            raise

    def require_open(self) -> None:
        """Raises MisuseError when it was closed."""
        if self.closed.is_set():
            raise MisuseError(f"the log at {self.address} was closed: open it again with open_log")

    def _translated(self, exc: grpc.RpcError) -> TxmsgError:
        told = error_of_rpc(exc, broker=self.address, kind="MetaQ server")
        if told is not None:
            return told
        assert isinstance(exc, grpc.Call)
        details = details_of(exc)
        if exc.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details.lower():
            return BrokerUnavailable(
                f"MetaQ server {self.address} cannot be reached ({details}): check the address and that it runs"
            )
        if exc.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}:
            return OutcomeUnknown(
                f"MetaQ server {self.address} did not answer ({details}): the request may have been carried out"
            )
        return ProtocolError(f"MetaQ server {self.address} failed with {exc.code().name}: {details}")
