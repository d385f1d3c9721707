"""The figures of the day in PostgreSQL: tables, adding a batch of events, and reading for the page.

Knows neither Spark nor the page. Amounts are integer cents, times are event times in UTC: an event counts in the second
in which its local transaction committed. Turnover is what was paid minus what was refunded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from .latency import Latency, buckets, percentiles

K = TypeVar("K", str, datetime)

CHANNEL: Final = "figures"
"""Channel that is notified of each added batch once it can be read."""
LATE_AFTER_S: Final = 10
"""The watermark: an event is late if it is this much older than the latest counted one. It still counts."""
BAD_KEPT_MAX: Final = 10_000
"""Bad messages that are set aside until an operator deletes some; more are counted, and stay in the log."""
_KEPT: Final = timedelta(days=2)
"""Retention of figures by the second, latencies and batches. Figures by the minute are kept for good."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_CREATE: Final = """
create table if not exists figures_total (
    only_row       boolean primary key default true check (only_row),
    orders         bigint not null default 0,
    paid           bigint not null default 0,
    shipped        bigint not null default 0,
    refunded       bigint not null default 0,
    turnover_cents bigint not null default 0,
    late_events    bigint not null default 0,
    bad_messages   bigint not null default 0,
    through_at     timestamptz,  -- the latest event counted
    written_at     timestamptz
);
insert into figures_total default values on conflict do nothing;
create table if not exists figures_second (
    second timestamptz primary key, orders bigint not null, paid bigint not null, turnover_cents bigint not null
);
create table if not exists figures_minute (
    minute timestamptz primary key, orders bigint not null, paid bigint not null, turnover_cents bigint not null
);
create table if not exists figures_province (
    province text primary key, orders bigint not null, paid bigint not null, turnover_cents bigint not null
);
create table if not exists figures_category (
    category text primary key, orders bigint not null, paid bigint not null, turnover_cents bigint not null
);
create table if not exists figures_seller (
    seller text primary key, orders bigint not null, paid bigint not null, turnover_cents bigint not null
);
create table if not exists figures_latency (
    second    timestamptz,  -- in which the figure was written
    bucket_ms int,          -- at most so long after the commit of the trade
    events    bigint not null,
    primary key (second, bucket_ms)
);
create table if not exists figures_batch (
    batch_id     bigint primary key,
    at           timestamptz not null,
    messages     bigint not null,
    batch_ms     bigint not null,
    committed_ms bigint not null,  -- the next four: see Waits
    planned_ms   bigint not null,
    started_ms   bigint not null,
    read_ms      bigint not null
);
create index if not exists figures_batch_at on figures_batch (at);
create table if not exists figures_bad (
    queue int, "offset" bigint, reason text not null, body bytea not null, primary key (queue, "offset")
);
"""


def create_tables(connection: psycopg.Connection[Any]) -> None:
    """Create missing tables; existing ones are unchanged. One process at a time."""
    connection.execute(_CREATE)


# ---- adding a batch


@dataclass(frozen=True, slots=True)
class Sums(Generic[K]):
    """Figures by second, province, category or seller, as columns of the same length. A key occurs once."""

    keys: Sequence[K] = ()
    orders: Sequence[int] = ()
    paid: Sequence[int] = ()
    turnover_cents: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that counts in no figure."""

    queue: int
    offset: int
    reason: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Average waits of a batch's trades, one after the other; each is named after its end."""

    committed_ms: int = 0
    """From the trade until its message was stored: the local transaction, and the broker."""
    planned_ms: int = 0
    """From then until the batch was planned: the tailer, and the batch before."""
    started_ms: int = 0
    """Until work on the batch began."""
    read_ms: int = 0
    """Until all messages were read and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deltas:
    """The figures that one batch of messages adds."""

    batch_id: int
    messages: int
    """Messages read, including bad ones."""
    started_at: datetime
    """Time at which work on the batch began, by the clock that `add` is given."""
    waits: Waits = field(default_factory=Waits)
    orders: int = 0
    paid: int = 0
    shipped: int = 0
    refunded: int = 0
    turnover_cents: int = 0
    seconds: Sums[datetime] = field(default_factory=Sums)
    provinces: Sums[str] = field(default_factory=Sums)
    categories: Sums[str] = field(default_factory=Sums)
    sellers: Sums[str] = field(default_factory=Sums)
    commits: Mapping[int, int] = field(default_factory=dict)
    """Events committed by millisecond since 1970."""
    bad: Sequence[BadMessage] = ()
    bad_messages: int = 0
    """At least the number of those in `bad`."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


def add(connection: psycopg.Connection[Any], deltas: Deltas, *, clock: Callable[[], datetime] = _utc_now) -> None:
    """Add a batch to the figures, in the caller's transaction, at whose commit CHANNEL is notified.

    The caller sees to it that a batch is added once, and that no two transactions add at the same time.
    """
    _set_aside(connection, deltas.bad)
    with connection.pipeline():
        _add_sums(connection, "second", deltas.seconds)
        connection.execute(_ADD_MINUTES, _columns(deltas.seconds))
        _add_sums(connection, "province", deltas.provinces)
        _add_sums(connection, "category", deltas.categories)
        _add_sums(connection, "seller", deltas.sellers)
        through = connection.execute("select through_at from figures_total").fetchone()
    assert through is not None, "create_tables was not called"
    now = clock()  # as late as can be: latencies end here
    found = buckets(deltas.commits, _epoch_ms(now))
    with connection.pipeline():
        connection.execute(_ADD_TOTAL, _total(deltas, through[0], now))
        connection.execute(_ADD_LATENCIES, (now.replace(microsecond=0), list(found), list(found.values())))
        batch = (deltas.batch_id, now, deltas.messages, _ms(now - deltas.started_at))
        connection.execute(_ADD_BATCH, (*batch, *astuple(deltas.waits)))
        if deltas.batch_id % _TRIMMED_EVERY == 0:
            _trim(connection, now - _KEPT)
        connection.execute("select pg_notify(%s, '')", (CHANNEL,))


_TRIMMED_EVERY: Final = 1_000
_ADD_SUMS: Final = sql.SQL(
    "insert into {table} as known select * from unnest(%s::{type}[], %s::bigint[], %s::bigint[], %s::bigint[]) "
    "on conflict ({key}) do update set orders = known.orders + excluded.orders, paid = known.paid + excluded.paid, "
    "turnover_cents = known.turnover_cents + excluded.turnover_cents"
)
_ADD_MINUTES: Final = """
insert into figures_minute as known
select date_trunc('minute', second, 'UTC'), sum(orders), sum(paid), sum(turnover_cents)
from unnest(%s::timestamptz[], %s::bigint[], %s::bigint[], %s::bigint[]) as added(second, orders, paid, turnover_cents)
group by 1
on conflict (minute) do update set orders = known.orders + excluded.orders, paid = known.paid + excluded.paid,
    turnover_cents = known.turnover_cents + excluded.turnover_cents
"""
_ADD_TOTAL: Final = """
update figures_total set
    orders = orders + %(orders)s, paid = paid + %(paid)s, shipped = shipped + %(shipped)s,
    refunded = refunded + %(refunded)s, turnover_cents = turnover_cents + %(turnover_cents)s,
    late_events = late_events + %(late_events)s, bad_messages = bad_messages + %(bad_messages)s,
    through_at = greatest(through_at, %(through_at)s), written_at = %(written_at)s
"""
_ADD_LATENCIES: Final = """
insert into figures_latency as known select %s, * from unnest(%s::int[], %s::bigint[])
on conflict (second, bucket_ms) do update set events = known.events + excluded.events
"""
_ADD_BATCH: Final = "insert into figures_batch values (%s, %s, %s, %s, %s, %s, %s, %s)"


def _add_sums(connection: psycopg.Connection[Any], key: str, sums: Sums[Any]) -> None:
    statement = _ADD_SUMS.format(
        table=sql.Identifier(f"figures_{key}"),
        key=sql.Identifier(key),
        type=sql.SQL("timestamptz" if key == "second" else "text"),
    )
    connection.execute(statement, _columns(sums))


def _columns(sums: Sums[Any]) -> list[list[Any]]:
    return [list(getattr(sums, each.name)) for each in fields(sums)]


def _total(deltas: Deltas, through_at: datetime | None, now: datetime) -> dict[str, Any]:
    late_before_ms = 0 if through_at is None else _epoch_ms(through_at) - LATE_AFTER_S * 1_000
    return {
        "orders": deltas.orders,
        "paid": deltas.paid,
        "shipped": deltas.shipped,
        "refunded": deltas.refunded,
        "turnover_cents": deltas.turnover_cents,
        "late_events": sum(count for at_ms, count in deltas.commits.items() if at_ms < late_before_ms),
        "bad_messages": deltas.bad_messages,
        "through_at": _EPOCH + timedelta(milliseconds=max(deltas.commits)) if deltas.commits else None,
        "written_at": now,
    }


def _set_aside(connection: psycopg.Connection[Any], bad: Sequence[BadMessage]) -> None:
    if not bad:
        return
    (kept,) = connection.execute("select count(*) from figures_bad").fetchone() or (0,)
    rows = [(each.queue, each.offset, each.reason, each.body) for each in bad[: max(0, BAD_KEPT_MAX - kept)]]
    with connection.cursor() as cursor:
        cursor.executemany("insert into figures_bad values (%s, %s, %s, %s)", rows)


def _trim(connection: psycopg.Connection[Any], before: datetime) -> None:
    connection.execute("delete from figures_second where second < %s", (before,))
    connection.execute("delete from figures_latency where second < %s", (before,))
    connection.execute("delete from figures_batch where at < %s", (before,))


def _epoch_ms(at: datetime) -> int:
    return _ms(at - _EPOCH)


def _ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


# ---- reading for the page


@dataclass(frozen=True, slots=True)
class Entry(Generic[K]):
    """The figures of one second, minute, province, category or seller."""

    key: K
    orders: int
    paid: int
    turnover_cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The sums of all counted events."""

    orders: int
    """Orders created."""
    paid: int
    """Orders paid; paid / orders is the conversion."""
    shipped: int
    refunded: int
    turnover_cents: int
    late_events: int
    bad_messages: int
    through_at: datetime | None
    """The latest event counted; None before the first."""
    written_at: datetime | None
    """Time at which figures were last added, by the clock of the Spark job; None before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of the Spark job."""

    batch_id: int
    at: datetime
    messages: int
    batch_ms: int
    """From the begin of the work on it to its figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The values of the page, in one snapshot."""

    total: Total
    seconds: tuple[Entry[datetime], ...]
    """The last 10 minutes, in order, without seconds that have no event."""
    minutes: tuple[Entry[datetime], ...]
    """The last 24 hours, in order, without minutes that have no event."""
    provinces: tuple[Entry[str], ...]
    """All, the greatest turnover first."""
    categories: tuple[Entry[str], ...]
    """All, the greatest turnover first."""
    sellers: tuple[Entry[str], ...]
    """The 10 with the greatest turnover."""
    latency_now: Latency
    """Of the last 10 seconds in which figures were written."""
    latency: Latency
    """Of the last minute in which figures were written."""
    batch: Batch | None
    """The last one; None before."""


def read(connection: psycopg.Connection[Any]) -> Figures:
    """Return all figures in one snapshot. The connection is in no transaction, before and after."""
    with connection.transaction(), connection.pipeline():
        connection.execute("set transaction isolation level repeatable read, read only")
        total = connection.cursor(row_factory=class_row(Total)).execute(_READ_TOTAL)
        seconds = connection.execute(_READ_SECONDS)
        minutes = connection.execute(_READ_MINUTES)
        provinces = connection.execute(_READ_PROVINCES)
        categories = connection.execute(_READ_CATEGORIES)
        sellers = connection.execute(_READ_SELLERS)
        latency_now = connection.execute(_READ_LATENCY, (timedelta(seconds=10),))
        latency = connection.execute(_READ_LATENCY, (timedelta(minutes=1),))
        batch = connection.cursor(row_factory=class_row(Batch)).execute(_READ_BATCH)
        found = total.fetchone()
        assert found is not None, "create_tables was not called"
        return Figures(
            total=found,
            seconds=_entries(seconds),
            minutes=_entries(minutes),
            provinces=_entries(provinces),
            categories=_entries(categories),
            sellers=_entries(sellers),
            latency_now=percentiles(latency_now),
            latency=percentiles(latency),
            batch=batch.fetchone(),
        )


def latency_between(connection: psycopg.Connection[Any], since: datetime, until: datetime) -> Latency:
    """Return the latency of all figures written in this time, by whole seconds."""
    return percentiles(connection.execute(_READ_LATENCY_BETWEEN, (since, until)))


def _entries(cursor: psycopg.Cursor[Any]) -> tuple[Entry[Any], ...]:
    return tuple(Entry(*row) for row in cursor)


_READ_TOTAL: Final = """
select orders, paid, shipped, refunded, turnover_cents, late_events, bad_messages, through_at, written_at
from figures_total
"""
_READ_SECONDS: Final = """
select second, orders, paid, turnover_cents from figures_second
where second > (select through_at from figures_total) - interval '10 minutes' order by second
"""
_READ_MINUTES: Final = """
select minute, orders, paid, turnover_cents from figures_minute
where minute > (select through_at from figures_total) - interval '24 hours' order by minute
"""
_READ_PROVINCES: Final = """
select province, orders, paid, turnover_cents from figures_province order by turnover_cents desc, province
"""
_READ_CATEGORIES: Final = """
select category, orders, paid, turnover_cents from figures_category order by turnover_cents desc, category
"""
_READ_SELLERS: Final = """
select seller, orders, paid, turnover_cents from figures_seller order by turnover_cents desc, seller limit 10
"""
_READ_LATENCY: Final = """
select bucket_ms, sum(events)::bigint from figures_latency
where second > (select written_at from figures_total) - %s group by 1 order by 1
"""
_READ_LATENCY_BETWEEN: Final = """
select bucket_ms, sum(events)::bigint from figures_latency where second >= %s and second < %s group by 1 order by 1
"""
_READ_BATCH: Final = "select batch_id, at, messages, batch_ms from figures_batch order by batch_id desc limit 1"
