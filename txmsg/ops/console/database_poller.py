"""Polls the brokers of one Notify database, and keeps the last quarter of an hour. Independent of pages.

One task polls for all browsers: every second while a browser looks, otherwise rarely, so that timelines have no gaps.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from txmsg.administration.cluster import (
    BrokerSummary,
    ClusterService,
    ClusterState,
    ExportedFigures,
    ReadFigures,
    Series,
    ShowCluster,
)
from txmsg.errors import PermissionDenied, TxmsgError, Unauthenticated
from txmsg.metrics.catalogue import CATALOGUE, MetricKind, Scope
from txmsg.ops.console.database import DatabaseBrokers
from txmsg.ops.console.identity import UserIdentity, who_am_i
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

POLL_S: Final = 1.0
IDLE_POLL_S: Final = 10.0
REFUSED_POLL_S: Final = 300.0
"""Seconds between polls while brokers ask for a token: each one is a refused login in their logs."""
LOOKED_S: Final = 10.0
"""Seconds after the last request of a page for which it counts as being looked at."""
DATABASE_POLL_S: Final = 5.0
"""Seconds between two reads of the database's figures, which brokers do not read more often either."""
HISTORY_S: Final = 15 * 60.0
_POINTS_MAX: Final = 1000
_READ: Final = "txmsg_halves"
_AGE: Final = "txmsg_database_figures_age_seconds"
_SAME_S: Final = 0.5
"""Seconds between two readings of the database by its broker below which they are the same one."""
_BROKERS_MAX: Final = 50
"""Maximum brokers whose figures are polled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSnapshot:
    """The state at a moment. Rates are per second, since the previous snapshot."""

    taken_at: float
    """The time of the snapshot, by the monotonic clock."""
    at: float
    """The time of the snapshot, in seconds since 1970."""
    cluster: ClusterState
    series: Mapping[str, Series]
    """The figures of each broker by its id, without those of the database."""
    silent: Mapping[str, str]
    """The reasons why active brokers reported no figures, by their ids."""
    unpolled: int = 0
    """Active brokers whose figures are not asked for, because there are too many."""
    rates: Mapping[str, Series]
    """Rates of the counters of each broker."""
    database: Series
    database_rates: Series
    database_taken_at: float
    """The time at which the reporting broker had read them, by the monotonic clock here."""

    def total(self, name: str, *labels: str) -> float:
        """Return the sum of a metric over all brokers and series; labels: only series with these values, in
        any place.
        """
        return _total(self._of(name), name, labels)

    def rate(self, name: str, *labels: str) -> float:
        """Return the rate of a counter, of all brokers together."""
        series = [self.database_rates] if CATALOGUE[name].scope is Scope.DATABASE else list(self.rates.values())
        return _total(series, name, labels)

    def rate_of(self, broker: str, name: str, *labels: str) -> float | None:
        """Return the rate of a counter of one broker; None if it is not known."""
        return _total([self.rates[broker]], name, labels) if broker in self.rates else None

    def value_of(self, broker: str, name: str, *labels: str) -> float | None:
        """Return the value of a metric of one broker; None if it is not known."""
        return _total([self.series[broker]], name, labels) if broker in self.series else None

    def greatest(self, name: str) -> float:
        """Return the greatest value among the series of a metric."""
        return max((value for each in self._of(name) for (of, _), value in each.items() if of == name), default=0.0)

    def whole(self, name: str) -> float | None:
        """Return the one value of a metric of the database; None if it is not known."""
        return self.database.get((name, ()))

    def each(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the values of a metric of the database by its labels."""
        return {labels: value for (of, labels), value in self.database.items() if of == name}

    def each_rate(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the rates of a counter of the database by its labels."""
        return {labels: value for (of, labels), value in self.database_rates.items() if of == name}

    def broker(self, broker: str) -> BrokerSummary | None:
        """Return a broker by its id."""
        return next((each for each in self.cluster.brokers if each.id == broker), None)

    def _of(self, name: str) -> Sequence[Series]:
        return [self.database] if CATALOGUE[name].scope is Scope.DATABASE else list(self.series.values())


def _total(series: Sequence[Series], name: str, labels: Sequence[str]) -> float:
    return sum(
        value for each in series for (of, found), value in each.items() if of == name and set(labels) <= set(found)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """A point of the timelines."""

    at: float
    """The time in seconds since 1970."""
    values: Mapping[str, float]


class DatabasePoller:
    """The latest snapshot of a database, and the history. Run `run` in its own task."""

    def __init__(self, database: DatabaseBrokers, who: UserIdentity | None = None) -> None:
        self.database = database
        self.who = who
        """The user who has logged in, with its rights at the last poll; None if brokers ask for no token."""
        self.snapshot: DatabaseSnapshot | None = None
        self.trouble = ""
        """The reason why the last poll failed; empty if it did not."""
        self.denied = ""
        """The reason why this visitor sees no figures; empty if it does. Brokers answer calls that it may make."""
        self.is_refused = False
        """True if brokers require another token."""
        self.history: deque[TimelinePoint] = deque(maxlen=_POINTS_MAX)
        self._looked_at = -LOOKED_S
        self._looked = asyncio.Event()
        self._polled = asyncio.Event()

    @property
    def name(self) -> str:
        """The name of the database."""
        return self.database.name

    def age_s(self) -> float | None:
        """Return the age of the snapshot in seconds; None without one."""
        return None if self.snapshot is None else time.monotonic() - self.snapshot.taken_at

    def note_visit(self) -> None:
        """Note that a page is looked at: for a while the database is polled each second."""
        self._looked_at = time.monotonic()
        self._looked.set()

    async def polled(self, timeout_s: float) -> None:
        """Wait for the end of the poll under way, or the next one."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._polled.wait()
        except TimeoutError:
            return

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            begun_at = time.monotonic()
            try:
                if self.who is not None:
                    self.who = await who_am_i(self.database) or self.who
                self.snapshot = await self._poll()
                self.trouble, self.denied, self.is_refused = "", "", False
                self._remember(self.snapshot)
            except PermissionDenied as exc:
                self.snapshot, self.trouble, self.denied = None, "", str(exc)
            except TxmsgError as exc:
                self.is_refused = isinstance(exc, Unauthenticated)
                if not self.trouble:
                    _log.warning(
                        "console.unreadable",
                        "%(database)s cannot be read: %(error)s",
                        database=self.name,
                        error=str(exc),
                    )
                self.trouble = str(exc)
            except Exception:  # noqa: BLE001 - the root of a task: one odd answer must not end it
                _log.exception(
                    "console.failed", "the answer of a broker of %(database)s cannot be read", database=self.name
                )
                self.trouble = "an answer of the broker could not be read; the console's log says why"
            # Waiters get this poll; a visitor that comes later waits for the next one.
            self._polled.set()
            self._polled = asyncio.Event()
            await self._pause(begun_at)

    async def _pause(self, begun_at: float) -> None:
        took_s = time.monotonic() - begun_at
        if self.is_refused:
            await asyncio.sleep(REFUSED_POLL_S)
            return
        if time.monotonic() - self._looked_at < LOOKED_S:
            await asyncio.sleep(max(POLL_S - took_s, took_s, 0.1))  # a slow database is not asked half of the time
            return
        self._looked.clear()
        try:
            async with asyncio.timeout(IDLE_POLL_S):
                await self._looked.wait()
        except TimeoutError:
            return

    async def _poll(self) -> DatabaseSnapshot:
        before = self.snapshot
        cluster = await self.database.ask_any(ClusterService.show, ShowCluster())
        alive = [each for each in cluster.brokers if each.state != "dead"]
        self.database.learn([each.address for each in alive])
        wants_database = before is None or time.monotonic() - before.database_taken_at >= DATABASE_POLL_S
        found = await asyncio.gather(
            *(
                # Every broker reports the same figures of the database, so only the first one is asked.
                self._figures(each, with_database=wants_database and place == 0)
                for place, each in enumerate(alive[:_BROKERS_MAX])
            )
        )
        silent = {each.id: why for each, why in zip(alive, found, strict=False) if isinstance(why, str)}
        told = [(each.broker, each.series) for each in found if isinstance(each, ExportedFigures)]
        now = time.monotonic()
        series = {broker: _scoped(values, Scope.PROCESS) for broker, values in told}
        rates = {
            broker: _rates(before.series[broker], values, now - before.taken_at)
            for broker, values in series.items()
            if before is not None and broker in before.series
        }
        # A broker that has not read the figures of the database yet tells none of halves either.
        database = next((values for _, values in told if any(name == _READ for name, _ in values)), None)
        database_taken_at = now if database is None else now - _total([database], _AGE, ())
        if before is not None and database_taken_at - before.database_taken_at < _SAME_S:
            database = None  # a busy broker tells what it has told before: that is no rate of 0
        if database is not None:
            database = _scoped(database, Scope.DATABASE)
            database_rates = (
                {}
                if before is None
                else _rates(before.database, database, database_taken_at - before.database_taken_at)
            )
        elif before is not None:
            database, database_taken_at = before.database, before.database_taken_at
            database_rates = before.database_rates
        else:
            database, database_taken_at, database_rates = {}, -DATABASE_POLL_S, {}
        return DatabaseSnapshot(
            taken_at=now,
            at=time.time(),
            cluster=cluster,
            series=series,
            silent=silent,
            unpolled=max(0, len(alive) - _BROKERS_MAX),
            rates=rates,
            database=database,
            database_rates=database_rates,
            database_taken_at=database_taken_at,
        )

    async def _figures(self, broker: BrokerSummary, *, with_database: bool) -> ExportedFigures | str:
        request = ReadFigures(with_database=with_database)
        try:
            return await self.database.ask_at(broker.address, ClusterService.figures, request)
        except TxmsgError as exc:
            return str(exc)

    def _remember(self, snapshot: DatabaseSnapshot) -> None:
        self.history.append(TimelinePoint(at=snapshot.at, values=_values(snapshot)))
        while self.history[0].at < snapshot.at - HISTORY_S:
            self.history.popleft()


def _values(snapshot: DatabaseSnapshot) -> dict[str, float]:
    """Return the values of the timelines. Unknown values, and rates that need a second poll, are left out."""
    values: dict[str, float] = {}
    if snapshot.database:
        values |= {
            "halves": snapshot.total("txmsg_halves"),
            "in_doubt": snapshot.total("txmsg_halves", "in_doubt") + snapshot.total("txmsg_halves", "parked"),
            "lag": snapshot.total("txmsg_group_lag_messages"),
            "retrying": snapshot.total("txmsg_group_retrying_messages"),
            "dead": snapshot.total("txmsg_group_dead_letters"),
        }
    if snapshot.rates:
        values |= {
            "stored": snapshot.rate("txmsg_stored_messages_total"),
            "delivered": snapshot.rate("txmsg_delivered_messages_total"),
            "errors": snapshot.rate("txmsg_item_errors_total") + snapshot.rate("txmsg_call_errors_total"),
        }
    return values


def _scoped(series: Series, scope: Scope) -> Series:
    """Return the metrics of this scope. Those of a newer broker that the catalogue lacks are left out."""
    return {key: value for key, value in series.items() if key[0] in CATALOGUE and CATALOGUE[key[0]].scope is scope}


def _rates(before: Series, after: Series, seconds: float) -> Series:
    """Return the rates of counters. A counter that fell has begun at 0 again."""
    return {
        key: (value - before[key] if value >= before[key] else value) / max(seconds, 1e-3)
        for key, value in after.items()
        if CATALOGUE[key[0]].kind is MetricKind.COUNTER and key in before
    }
