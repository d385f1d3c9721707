"""Trades by minute, as in bookkeeping: a minute is closed once, and later events are corrections.

A minute is closed when an event has been counted that happened LATE_AFTER_S after its end. Its figures are published
then, and never change. An event of a closed minute is late: what a batch adds to such a minute is one correction, so
that the report of a minute is what was published, and all corrections since. No event is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import psycopg

from .figures import LATE_AFTER_S, Deltas

_SUMS: Final = "orders bigint not null, paid bigint not null, turnover_cents bigint not null"
_CREATE: Final = f"""
create table if not exists minute_open (minute timestamptz primary key, {_SUMS});
create table if not exists minute_closed (minute timestamptz primary key, {_SUMS}, closed_at timestamptz not null);
create table if not exists minute_correction (
    minute timestamptz, batch_id bigint, {_SUMS}, noted_at timestamptz not null, primary key (minute, batch_id)
);
create table if not exists minute_through (
    only_row       boolean primary key default true check (only_row),
    through_at     timestamptz not null default '-infinity',  -- the latest event counted
    closed_through timestamptz not null default '-infinity'   -- all minutes before it are closed
);
insert into minute_through default values on conflict do nothing;
create or replace view minute_report as
select minute, closed_at, coalesce(published.turnover_cents, 0) as published_cents,
    coalesce(late.corrections, 0) as corrections,
    coalesce(published.orders, 0) + coalesce(late.orders, 0) as orders,
    coalesce(published.paid, 0) + coalesce(late.paid, 0) as paid,
    coalesce(published.turnover_cents, 0) + coalesce(late.turnover_cents, 0) as turnover_cents
from minute_closed as published full join (
    select minute, count(*) as corrections, sum(orders)::bigint as orders, sum(paid)::bigint as paid,
        sum(turnover_cents)::bigint as turnover_cents
    from minute_correction group by minute
) as late using (minute);
"""
_ADDED: Final = """
with added as (
    select date_trunc('minute', second, 'UTC') as minute, sum(orders)::bigint as orders, sum(paid)::bigint as paid,
        sum(turnover_cents)::bigint as turnover_cents
    from unnest(%(seconds)s::timestamptz[], %(orders)s::bigint[], %(paid)s::bigint[], %(turnover_cents)s::bigint[])
        as each(second, orders, paid, turnover_cents)
    group by 1
)
"""
_CORRECT: Final = f"""{_ADDED}
insert into minute_correction
select minute, %(batch_id)s, orders, paid, turnover_cents, %(now)s from added, minute_through
where minute < closed_through and (orders, paid, turnover_cents) <> (0, 0, 0)
"""
_ADD: Final = f"""{_ADDED}
insert into minute_open as known
select added.* from added, minute_through where minute >= closed_through
on conflict (minute) do update set orders = known.orders + excluded.orders, paid = known.paid + excluded.paid,
    turnover_cents = known.turnover_cents + excluded.turnover_cents
"""
_MOVE_ON: Final = """
update minute_through set
    through_at = greatest(through_at, %(through_at)s),
    closed_through = greatest(
        closed_through,
        date_trunc('minute', %(through_at)s::timestamptz - make_interval(secs => %(late_after_s)s), 'UTC')
    )
"""
_CLOSE: Final = """
with done as (
    delete from minute_open where minute < (select closed_through from minute_through) returning *
)
insert into minute_closed select minute, orders, paid, turnover_cents, %(now)s from done
"""


def create_tables(connection: psycopg.Connection[Any]) -> None:
    """Create missing tables, and the view minute_report. One process at a time."""
    connection.execute(_CREATE)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def add(connection: psycopg.Connection[Any], deltas: Deltas, *, clock: Callable[[], datetime] = _utc_now) -> None:
    """Add a batch in the caller's transaction: to open minutes and as corrections, then close past minutes.

    The caller sees to it that a batch is added once, and that no two transactions add at the same time.
    """
    if not deltas.commits:
        return
    seconds = deltas.seconds
    told = {
        "seconds": list(seconds.keys),
        "orders": list(seconds.orders),
        "paid": list(seconds.paid),
        "turnover_cents": list(seconds.turnover_cents),
        "batch_id": deltas.batch_id,
        "through_at": datetime.fromtimestamp(max(deltas.commits) / 1000, UTC),
        "late_after_s": LATE_AFTER_S,
        "now": clock(),
    }
    with connection.pipeline():
        for statement in (_CORRECT, _ADD, _MOVE_ON, _CLOSE):
            connection.execute(statement, told)
