"""Calls a MetaQ server, and retries until a deadline: each call is safe to repeat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception_type, sleep_using_event, stop_before_delay, wait_random_exponential

from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown, TxmsgError
from txmsg.runtime.forks import check_fork_was_told, renew_in_children
from txmsg.runtime.process import check_not_patched
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.credential import TokenChoice
from txmsg.wire.failures import was_told
from txmsg.wire.tls import TlsChoice

T = TypeVar("T")

_RETRYABLE = (BrokerUnavailable, OutcomeUnknown)
_ATTEMPT_S_MIN = 0.1


class RemoteServer:
    """A MetaQ server, reached over one channel, which threads share."""

    def __init__(self, address: str, *, tls: TlsChoice = None, token: TokenChoice = None) -> None:
        self.address = address
        check_not_patched()
        self.channel = BlockingChannel(address, kind="MetaQ server", tls=tls, token=token)
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        """Close the channel. Calls under way fail. Closing twice is fine."""
        self.closed.set()
        self.channel.close()

    def ask_until_answered(
        self,
        attempt: Callable[[float, bool], T],
        *,
        timeout_s: float,
        attempt_s: float | None = None,
        changes: bool = False,
    ) -> T:
        """Return the result of `attempt(timeout_s, is_repeat)`, called until it answers, refuses, or the time is over.

        changes: if an attempt before the one that failed may have been carried out, the error is OutcomeUnknown.
        is_repeat: an earlier attempt may have been carried out.
        """
        check_fork_was_told()
        unknown: OutcomeUnknown | None = None
        deadline = time.monotonic() + timeout_s
        attempts = Retrying(
            retry=retry_if_exception_type(_RETRYABLE),
            # Jitter from the first repeat on: clients that lose one server at the same time must not return at the same
            # time.
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
                        # What the server said tells more than the silence of a last try, which had little time.
                        if unknown is None or was_told(exc) or not was_told(unknown):
                            unknown = exc
                        raise
        except TxmsgError as exc:
            if unknown is None:
                raise
            if changes and not isinstance(exc, OutcomeUnknown):
                # Also if it is refused: that says nothing of the attempt that had no answer.
                raise OutcomeUnknown(f"{exc}; an earlier attempt may have been carried out") from exc
            if changes:
                raise unknown from unknown.__cause__
            if not isinstance(exc, _RETRYABLE):
                raise
            raise BrokerUnavailable(f"MetaQ server {self.address} gave no answer in {timeout_s:g} s: {exc}") from exc
        raise AssertionError("the last attempt raises or returns")

    def _attempt(self, attempt: Callable[[float, bool], T], timeout_s: float, is_repeat: bool) -> T:
        self.require_open()
        try:
            return attempt(timeout_s, is_repeat)
        except TxmsgError:
            self.require_open()
            raise

    def require_open(self) -> None:
        """Raise MisuseError if it was closed."""
        if self.closed.is_set():
            raise MisuseError(f"the log at {self.address} was closed: open it again with open_log")
