"""The threads that read and check, shared by all users of a server so that none has them all.

Knows no log. A user has all threads but one at most, and work that can swell, one of them: it unpacks what a client has
compressed, whose few bytes can become 256 MiB. Such work is paced by how far it swells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from txmsg.errors import Overloaded
from txmsg.wire.access.rate import TokenBucket, admitted
from txmsg.wire.caller import Calling, answering

T = TypeVar("T")

FREE_RATIO: Final = 100
"""Unpacked size, as a multiple of the stored size, that costs nothing: batches of like records swell 5 to 50 times."""
SWELL_BYTES_PER_S: Final = 32 * 1024 * 1024
"""Bytes beyond it that a user may have unpacked per second.

A check takes 1 s for 256 MiB, many small headers up to 16 s.
"""
_WAIT_S_MAX: Final = 5.0
_SWELLING_MAX: Final = 2


def swell_bytes(stored_size_bytes: int, size_bytes: int) -> int:
    """Return the number of unpacked bytes that are paced."""
    return max(0, size_bytes - FREE_RATIO * stored_size_bytes)


class ReaderThreads:
    """Shares an executor's threads among users. threads: their number. clock: monotonic. Belongs to one loop."""

    def __init__(self, executor: Executor, threads: int, *, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._threads = threads
        self._clock = clock
        self._shares: WeakKeyDictionary[object, _Share] = WeakKeyDictionary()
        self._swelling = asyncio.Semaphore(_SWELLING_MAX)

    async def run(self, work: Callable[[], T]) -> T:
        """Run work on a thread, and return its result."""
        share = self._share()
        return await (self._on_thread(work) if share is None else self._on_thread(work, share.threads))

    async def unpack(self, work: Callable[[], T]) -> T:
        """Run work that unpacks stored data: one of a user's at a time."""
        share = self._share()
        if share is None:
            return await self._on_thread(work, self._swelling)
        # The user's own turn first: those of one user that wait keep no place from others.
        return await self._on_thread(work, share.turn, self._swelling, share.threads)

    async def pay(self, swell_size_bytes: int) -> None:
        """Return when a call may unpack so many bytes beyond the free ones. Raises Overloaded, at once."""
        share = self._share()
        if not swell_size_bytes or share is None:
            return

        def refusal() -> Overloaded:
            return Overloaded(
                f"batches become more than {FREE_RATIO} times as large when they are unpacked, and "
                f"{SWELL_BYTES_PER_S // 2**20} MiB/s of that are checked for one user: nothing was appended; send "
                "smaller batches, or send them more slowly"
            )

        await admitted(share.swelling, swell_size_bytes, now=self._clock(), wait_s_max=_WAIT_S_MAX, refusal=refusal)

    async def _on_thread(self, work: Callable[[], T], *bounds: asyncio.Semaphore | asyncio.Lock) -> T:
        """Run work within bounds, which are held until the thread is free: later than the end of a cancelled call."""
        with ExitStack() as holding:
            for bound in bounds:
                await bound.acquire()
                holding.callback(bound.release)
            job = self._executor.submit(work)
            held = holding.pop_all()
        working = asyncio.wrap_future(job)

        def release(done: asyncio.Future[T]) -> None:
            held.close()
            if not done.cancelled():
                done.exception()  # it counts as retrieved even if the caller is gone

        working.add_done_callback(release)
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            # The bounds stay taken until the thread is free, or cancelled calls of one user could occupy all threads.
            job.cancel()  # if no thread has begun it
            raise
        return working.result()

    def _share(self) -> _Share | None:
        """Return the share of the caller's user; without authentication, of its connection.

        None: this process itself asks.
        """
        calling: Calling | None = answering.get()
        if calling is None:
            return None
        # By user and not by connection where users are known: a client can open more connections.
        owner = calling if calling.usage is None else calling.usage
        found = self._shares.get(owner)
        if found is None:
            found = self._shares[owner] = _Share(max(1, self._threads - 1), self._clock())
        return found


class _Share:
    """The share of the threads that one user has."""

    def __init__(self, threads: int, now: float) -> None:
        self.threads = asyncio.Semaphore(threads)
        self.turn = asyncio.Lock()
        self.swelling = TokenBucket(SWELL_BYTES_PER_S, now)
