"""Runs blocking calls on threads, and waits for none longer than a page may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from txmsg.errors import BrokerUnavailable, OutcomeUnknown

T = TypeVar("T")

CALL_S_MAX: Final = 8.0


class LimitedCalls:
    """A limited number of concurrent calls to `whom`."""

    def __init__(self, whom: str, threads: int) -> None:
        self._whom = whom
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="txmsg-console")

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread. Returns its result.

        Raises OutcomeUnknown if it takes too long and continues, BrokerUnavailable if no thread was free to begin it.
        """
        begun = self._threads.submit(work)
        try:
            async with asyncio.timeout(CALL_S_MAX):
                return await asyncio.wrap_future(begun)
        except TimeoutError as exc:
            # A call that can be cancelled has not begun, so nothing was changed. Otherwise its thread continues, and
            # the outcome is unknown.
            if begun.cancel():
                raise BrokerUnavailable(
                    f"nothing was asked: the console is busy with other calls to {self._whom}, try again"
                ) from exc
            raise self.unknown() from exc

    def unknown(self) -> OutcomeUnknown:
        """Return the error for a call that was not answered."""
        return OutcomeUnknown(
            f"no answer of {self._whom} within {CALL_S_MAX:g} s: if it was to change something, "
            "it may have been carried out"
        )

    def close(self) -> None:
        """Refuse calls that have not begun. Closing twice is fine."""
        self._threads.shutdown(wait=False, cancel_futures=True)
