"""A consumer's links, one to each known broker, added and removed as brokers come and go. Belongs to one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from txmsg.client.channel import Brokers
from txmsg.client.receiving.fetch_budget import FetchBounds
from txmsg.client.receiving.link import Link
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

SETTLE_S_MAX = 5.0
"""Seconds for reporting the results of its messages to a broker, at the end."""


@dataclass(slots=True, eq=False)
class _RunningLink:
    link: Link
    polling: asyncio.Task[None]
    keeping: asyncio.Task[None]


class Links:
    """One link per broker. `new_link` makes that of an address."""

    def __init__(self, brokers: Brokers, new_link: Callable[[str], Link], *, group: str) -> None:
        self._brokers = brokers
        self._new_link = new_link
        self._group = group
        self._running: dict[str, _RunningLink] = {}
        self._retiring: dict[asyncio.Task[None], _RunningLink] = {}
        self._stopping = False
        brokers.watch(self._follow)
        self._follow()

    async def stop(self) -> None:
        """Begin no further poll; return when all messages are settled. To be cancelled if that takes long."""
        self._stopping = True
        links = self._all()
        for each in links:
            each.link.stop()
        # Not gather: of a broker that has gone, polling may be cancelled meanwhile, which is not the end of this.
        for each in links:
            await asyncio.wait([each.polling])
        await asyncio.gather(*(each.link.idle() for each in links))

    async def close(self) -> None:
        """End everything but settling."""
        self._stopping = True
        links = self._all()
        tasks = [*self._retiring, *(task for each in links for task in (each.polling, each.keeping))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def flush(self) -> None:
        """Send all settlements that wait, to the brokers that answer."""
        await asyncio.gather(*(each.link.flush(SETTLE_S_MAX) for each in self._all()))

    def out(self) -> int:
        """Return the number of messages received and not settled."""
        return sum(each.link.out for each in self._all())

    def apply_bounds(self, bounds: FetchBounds) -> None:
        """Apply new bounds to each link."""
        for each in self._all():
            each.link.apply_bounds(bounds)

    def pause(self) -> None:
        """Ask no broker for more until `resume`."""
        for each in self._all():
            each.link.pause()

    def resume(self) -> None:
        """End `pause`."""
        for each in self._all():
            each.link.resume()

    def _all(self) -> list[_RunningLink]:
        return [*self._running.values(), *self._retiring.values()]

    def _follow(self) -> None:
        if self._stopping:
            return
        known = self._brokers.addresses
        for address in self._running.keys() - set(known):
            self._retire(self._running.pop(address))
        for address in known:
            if address not in self._running:
                link = self._new_link(address)
                self._running[address] = _RunningLink(
                    link, asyncio.create_task(self._poll(link)), asyncio.create_task(self._extend_visibility(link))
                )

    def _retire(self, running: _RunningLink) -> None:
        """Stop polling a broker that has gone from the others' list. Its messages are still settled, if it answers."""
        _log.info(
            "consumer.broker_gone",
            "group %(group)s: broker %(broker)s has gone",
            group=self._group,
            broker=running.link.address,
        )
        task = asyncio.create_task(self._finish(running))
        self._retiring[task] = running
        # `close` cancels it, and `flush` has something to tell that broker then.
        task.add_done_callback(lambda done: None if done.cancelled() else self._retiring.pop(done))

    async def _finish(self, running: _RunningLink) -> None:
        running.link.stop()
        try:
            async with asyncio.timeout(SETTLE_S_MAX):
                await running.polling
                await running.link.idle()
        except TimeoutError:
            _log.info(
                "consumer.broker_gone_holding",
                "group %(group)s: handlers still hold messages of %(broker)s, which has gone",
                group=self._group,
                broker=running.link.address,
            )
        running.keeping.cancel()
        running.polling.cancel()
        # What they were telling the broker is then to be told again.
        await asyncio.wait([running.keeping, running.polling])
        await running.link.flush(SETTLE_S_MAX)

    async def _poll(self, link: Link) -> None:
        while True:
            try:
                await link.run()
                return
            except Exception:  # noqa: BLE001 - a task's root
                _log.exception(
                    "consumer.polling_broken",
                    "group %(group)s: polling broker %(broker)s failed unexpectedly",
                    group=self._group,
                    broker=link.address,
                )
                await asyncio.sleep(1)

    async def _extend_visibility(self, link: Link) -> None:
        while True:
            try:
                await link.extend_visibility()
            except Exception:  # noqa: BLE001 - a task's root
                _log.exception(
                    "consumer.keeping_broken",
                    "group %(group)s: keeping messages of broker %(broker)s failed unexpectedly",
                    group=self._group,
                    broker=link.address,
                )
