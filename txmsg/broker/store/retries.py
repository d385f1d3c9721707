"""Statements on failures: retries, dead letters, and the lag of groups. The caller owns the transaction.

Values per row are found by array_position instead of a join with unnest: see store/delivery.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, LiteralString, NamedTuple

from psycopg import sql

from txmsg.administration.halves import GroupLag
from txmsg.broker.store.connect import Connection
from txmsg.broker.store.delivery import (
    MESSAGE_COLUMNS,
    QUEUE_END,
    partition,
    plain_cursor,
    raw_cursor,
    scalar_cursor,
)
from txmsg.broker.store.rows import RetryKey, RetryRow, StoredRow
from txmsg.message import QueueId


class FirstFailure(NamedTuple):
    """A first delivery that failed.

    delay_s None: it was not delivered, but follows its ordering key into the table, and is due when those before it are
    done or dead. losses: 1 if its consumer was lost with it, so that the attempt does not count.
    """

    offset: int
    delay_s: float | None
    error: str | None
    losses: int = 0


class RetryFailure(NamedTuple):
    """A retry that failed, after this many deliveries. losses: the remaining count of them."""

    offset: int
    attempts: int
    delay_s: float
    error: str
    losses: int = 0


class Loss(NamedTuple):
    """A retry whose consumer was lost with it, for the `losses`-th time: due at once, and not counted as an attempt."""

    offset: int
    losses: int
    error: str


class LastFailure(NamedTuple):
    """A retry that failed for the last time."""

    offset: int
    attempts: int
    error: str


# One entry of `failures`, of attempt a and with error e. Shortened, because each further entry rewrites all of them.
_ENTRY = sql.SQL("jsonb_build_object('attempt', {a}, 'at', now(), 'error', left({e}, 300))")


def _of_offset(array: str, row: str, kind: str) -> sql.Composed:
    """Return SQL for the value that belongs to a row's offset in an array beside `offsets`."""
    return sql.SQL("(%({array})s::{kind}[])[array_position(%(offsets)s::bigint[], {row}.queue_offset)]").format(
        array=sql.SQL(array), kind=sql.SQL(kind), row=sql.SQL(row)
    )


@lru_cache(maxsize=256)
def _insert_retries_from(segment: int) -> sql.Composed:
    return sql.SQL(
        """
        insert into txmsg.retry
               (group_id, queue_id, generation, attempt, losses, due_at, last_error, failures, {columns})
        select %(group)s, m.queue,
               coalesce((select c.again_generations[width_bucket(m.queue_offset, c.again_from)] from txmsg.cursor c
                          where c.group_id = %(group)s and c.queue_id = %(queue_id)s), 0),
               case when {delay_s} is null or {losses} > 0 then 0 else 1 end, {losses},
               case when {delay_s} is null then 'infinity' else now() + make_interval(secs => {delay_s}) end, {error},
               case when {delay_s} is null or {losses} > 0 then '[]' else jsonb_build_array({entry}) end, {columns}
          from {partition} m
         where m.segment = {segment} and m.queue = %(queue_id)s and m.queue_offset = any(%(offsets)s::bigint[])
         order by m.queue_offset
        on conflict do nothing
        """
    ).format(
        columns=MESSAGE_COLUMNS,
        delay_s=_of_offset("delays_s", "m", "float8"),
        losses=_of_offset("losses", "m", "int"),
        error=_of_offset("errors", "m", "text"),
        entry=_ENTRY.format(a=sql.SQL("1"), e=_of_offset("errors", "m", "text")),
        partition=partition(segment),
        segment=sql.Literal(segment),
    )


async def insert_retries(
    conn: Connection,
    group: int,
    segment: int,
    queue_id: QueueId,
    failures: Collection[FirstFailure],
) -> int:
    """Insert retries of these messages, copied from the segment. Returns their number.

    Existing ones stay unchanged, so repeating is safe. ForeignKeyViolation: the group was deleted.
    """
    cursor = await plain_cursor(conn).execute(
        _insert_retries_from(segment),
        {
            "group": group,
            "queue_id": queue_id,
            "offsets": [failure.offset for failure in failures],
            "delays_s": [failure.delay_s for failure in failures],
            "losses": [failure.losses for failure in failures],
            "errors": [failure.error for failure in failures],
        },
        prepare=False,
    )
    return cursor.rowcount


async def update_retries(conn: Connection, group: int, queue_id: QueueId, failures: Collection[RetryFailure]) -> None:
    """Postpone retries. Idempotent."""
    # The condition on attempt makes a repeat change nothing: a writer whose connection broke does not know if its first
    # try was committed, and writes again.
    await plain_cursor(conn).execute(
        sql.SQL(
            """
            update txmsg.retry r
               set attempt = {attempt}, losses = {losses}, due_at = now() + make_interval(secs => {delay_s}),
                   last_error = {error}, failures = r.failures || {entry}
             where r.group_id = %(group)s and r.queue_id = %(queue_id)s and r.queue_offset = any(%(offsets)s::bigint[])
               and r.attempt < {attempt}
            """
        ).format(
            attempt=_of_offset("attempts", "r", "int"),
            losses=_of_offset("losses", "r", "int"),
            delay_s=_of_offset("delays_s", "r", "float8"),
            error=_of_offset("errors", "r", "text"),
            entry=_ENTRY.format(a=_of_offset("attempts", "r", "int"), e=_of_offset("errors", "r", "text")),
        ),
        {
            "group": group,
            "queue_id": queue_id,
            "offsets": [failure.offset for failure in failures],
            "attempts": [failure.attempts for failure in failures],
            "losses": [failure.losses for failure in failures],
            "delays_s": [failure.delay_s for failure in failures],
            "errors": [failure.error for failure in failures],
        },
    )


async def note_losses(conn: Connection, group: int, queue_id: QueueId, lost: Collection[Loss]) -> None:
    """Count the loss of these retries' consumers, and make them due. Idempotent."""
    await plain_cursor(conn).execute(
        sql.SQL(
            """
            update txmsg.retry r
               set losses = {losses}, due_at = now(), last_error = {error}
             where r.group_id = %(group)s and r.queue_id = %(queue_id)s and r.queue_offset = any(%(offsets)s::bigint[])
               and r.losses < {losses}
            """
        ).format(losses=_of_offset("losses", "r", "int"), error=_of_offset("errors", "r", "text")),
        {
            "group": group,
            "queue_id": queue_id,
            "offsets": [each.offset for each in lost],
            "losses": [each.losses for each in lost],
            "errors": [each.error for each in lost],
        },
    )


async def bury(
    conn: Connection, group: int, queue_id: QueueId, failures: Collection[LastFailure], *, parks_keys: bool
) -> None:
    """Move retries to the dead letters. Idempotent.

    parks_keys: later messages of their ordering keys wait for an operator.
    """
    await plain_cursor(conn).execute(
        sql.SQL(
            """
            with dead as (
                delete from txmsg.retry r
                 where r.group_id = %(group)s and r.queue_id = %(queue_id)s
                   and r.queue_offset = any(%(offsets)s::bigint[])
                returning r.*
            )
            insert into txmsg.dead_letter
                   (group_id, queue_id, attempts, last_error, failures, generation, blocks_key, {columns})
            select d.group_id, d.queue_id, {attempt}, {error},
                   case when d.attempt < {attempt} then d.failures || {entry} else d.failures end, d.generation,
                   %(parks_keys)s and d.ordering_key is not null, {columns}
              from dead d
            on conflict (group_id, queue_id, queue_offset) do update
               set attempts = excluded.attempts, last_error = excluded.last_error, failures = excluded.failures,
                   generation = excluded.generation, blocks_key = excluded.blocks_key, died_at = excluded.died_at
            """
        ).format(
            columns=MESSAGE_COLUMNS,
            attempt=_of_offset("attempts", "d", "int"),
            error=_of_offset("errors", "d", "text"),
            entry=_ENTRY.format(a=_of_offset("attempts", "d", "int"), e=_of_offset("errors", "d", "text")),
        ),
        {
            "group": group,
            "queue_id": queue_id,
            "offsets": [failure.offset for failure in failures],
            "attempts": [failure.attempts for failure in failures],
            "errors": [failure.error for failure in failures],
            "parks_keys": parks_keys,
        },
    )


async def delete_retries(conn: Connection, group: int, queue_id: QueueId, offsets: Collection[int]) -> None:
    """Delete retries that were processed. Idempotent."""
    await plain_cursor(conn).execute(
        """
        delete from txmsg.retry
         where group_id = %(group)s and queue_id = %(queue_id)s and queue_offset = any(%(offsets)s::bigint[])
        """,
        {"group": group, "queue_id": queue_id, "offsets": list(offsets)},
    )


async def count_retries(conn: Connection, group: int, at_most: int) -> int:
    """Return the number of a group's retries, at all brokers; counting ends at at_most."""
    cursor = await scalar_cursor(conn).execute(
        "select count(*) from (select from txmsg.retry where group_id = %s limit %s) r", (group, at_most)
    )
    (count,) = await cursor.fetchall()
    return int(count)


async def held_keys(conn: Connection, group: int, queue_ids: Sequence[QueueId]) -> list[tuple[QueueId, str]]:
    """Return (queue id, ordering key) of the group's retries, and of dead letters that block their key."""
    cursor = await plain_cursor(conn).execute(
        """
        select r.queue_id, r.ordering_key from txmsg.retry r
         where r.group_id = %(group)s and r.queue_id = any(%(queue_ids)s::int[]) and r.ordering_key is not null
        union
        select d.queue_id, d.ordering_key from txmsg.dead_letter d
         where d.group_id = %(group)s and d.queue_id = any(%(queue_ids)s::int[]) and d.blocks_key
        """,
        {"group": group, "queue_ids": list(queue_ids)},
    )
    return await cursor.fetchall()


class FreedKeys(NamedTuple):
    """Ordering keys, as (queue id, key). empty: without a message in the table. due: whose first message is due now."""

    empty: list[tuple[QueueId, str]]
    due: list[tuple[QueueId, str]]


async def free_keys(conn: Connection, group: int, keys: Collection[tuple[QueueId, str]]) -> FreedKeys:
    """Make the heads of these ordering keys (queue id, key) due at once.

    A key that a dead letter blocks is not freed. Idempotent. To be called by one session of a group at a time, and
    after its retries were written: of two that do not see each other's rows, neither would free a head.
    """
    cursor = await plain_cursor(conn).execute(
        """
        with keys as materialized (
            select k.queue_id, k.ordering_key, h.queue_offset as head, exists (
                       select from txmsg.dead_letter d
                        where d.group_id = %(group)s and d.queue_id = k.queue_id and d.ordering_key = k.ordering_key
                          and d.blocks_key) as is_blocked
              from unnest(%(queue_ids)s::int[], %(keys)s::text[]) k(queue_id, ordering_key)
              left join lateral (
                   select r.queue_offset from txmsg.retry r
                    where r.group_id = %(group)s and r.queue_id = k.queue_id and r.ordering_key = k.ordering_key
                    order by r.queue_offset limit 1) h on true
        ), freed as (
            update txmsg.retry r set due_at = now()
              from keys k
             where r.group_id = %(group)s and r.queue_id = k.queue_id and r.queue_offset = k.head
               and r.due_at = 'infinity' and not k.is_blocked
            returning r.queue_id, r.ordering_key
        )
        select k.queue_id, k.ordering_key, false from keys k where k.head is null and not k.is_blocked
        union all
        select f.queue_id, f.ordering_key, true from freed f
        """,
        {"group": group, "queue_ids": [queue_id for queue_id, _ in keys], "keys": [key for _, key in keys]},
        # Planned each time: a plan made while the table was empty would read all of it when it has grown.
        prepare=False,
    )
    freed = FreedKeys([], [])
    for queue_id, key, is_due in await cursor.fetchall():
        (freed.due if is_due else freed.empty).append((queue_id, key))
    return freed


GROUPS_WITH_DUE_RETRIES: LiteralString = """
    with recursive earliest as (
        (select r.group_id, r.due_at from txmsg.retry r order by r.group_id, r.due_at limit 1)
         union all
        select next.group_id, next.due_at from earliest e cross join lateral (
               select r.group_id, r.due_at from txmsg.retry r
                where r.group_id > e.group_id order by r.group_id, r.due_at limit 1) next
    )
    select g.name from earliest e join txmsg.consumer_group g on g.id = e.group_id where e.due_at <= now()
"""


async def groups_with_due_retries(conn: Connection) -> list[str]:
    """Return the names of the groups that have a due retry.

    One descent of the index `retry_due` per group that has retries, to its first; groups without any cost nothing.
    Planned each time: a plan made while the table was empty would read all of it when it has grown.
    """
    cursor = await plain_cursor(conn).execute(GROUPS_WITH_DUE_RETRIES, prepare=False)
    return [name for (name,) in await cursor.fetchall()]


def _retry_row(cursor: object) -> Callable[[Sequence[Any]], RetryRow]:
    def retry(values: Sequence[Any]) -> RetryRow:
        queue_id, attempts, generation, losses, *message = values
        return RetryRow(queue_id, attempts, generation, StoredRow._make(message), losses)

    return retry


async def due_retries(
    conn: Connection,
    group: int,
    queue_ids: Sequence[QueueId],
    known: Collection[RetryKey],
    *,
    count: int,
    size_bytes: int,
    behind_count: int = 0,
    behind_size_bytes: int = 0,
) -> list[RetryRow]:
    """Return up to `count` due retries of these queues, longest due first, without those `known` already.

    Of an ordering key the first one; and after all of these, in order, the messages behind them: up to behind_count in
    all, as far as they wait for nothing else, such as a time of their own or a dead letter that blocks the key
    (decision 91). As many as begin within size_bytes of bodies and headers; always the first. Those behind also within
    behind_size_bytes. Takes no lock: one broker delivers at a time.
    """
    cursor = await raw_cursor(conn, _retry_row).execute(
        _DUE_RETRIES,
        {
            "group": group,
            "queue_ids": list(queue_ids),
            "known_queues": [queue_id for queue_id, _ in known],
            "known_offsets": [offset for _, offset in known],
            "count": count,
            "size_bytes": size_bytes,
            "behind_count": behind_count,
            "behind_size_bytes": behind_size_bytes,
        },
    )
    return await cursor.fetchall()


# heads: due retries that have no key, or are the first of theirs. behind: the retries that follow a head, in order, up
# to the first with a time of its own (bool_and over the window); keys that a dead letter blocks have none. sized:
# bounds the bytes, all heads before the first retry behind one, so that long chains do not keep other keys waiting.
_DUE_RETRIES = sql.SQL(
    """
    with heads as materialized (
        select r.*, r.due_at as first_due_at, 0::bigint as place from txmsg.retry r
         where r.group_id = %(group)s and r.due_at <= now() and r.queue_id = any(%(queue_ids)s::int[])
           and (r.queue_id, r.queue_offset) not in (
                select k.queue_id, k.queue_offset
                  from unnest(%(known_queues)s::int[], %(known_offsets)s::bigint[]) k(queue_id, queue_offset))
           and (r.ordering_key is null or not exists (
                select from txmsg.retry e
                 where e.group_id = r.group_id and e.queue_id = r.queue_id
                   and e.ordering_key = r.ordering_key and e.queue_offset < r.queue_offset))
         order by r.due_at limit %(count)s
    ), keys as materialized (
        select h.queue_id, h.ordering_key, h.queue_offset, h.due_at from heads h
         where h.ordering_key is not null and %(behind_count)s > 0 and not exists (
               select from txmsg.dead_letter d
                where d.group_id = %(group)s and d.queue_id = h.queue_id and d.ordering_key = h.ordering_key
                  and d.blocks_key)
    ), behind as (
        select f.* from keys k cross join lateral (
               select r.*, k.due_at as first_due_at, row_number() over w as place,
                      bool_and(r.due_at <= now() or r.due_at = 'infinity') over w as is_next
                 from (select r.* from txmsg.retry r
                        where r.group_id = %(group)s and r.queue_id = k.queue_id and r.ordering_key = k.ordering_key
                          and r.queue_offset > k.queue_offset
                        order by r.queue_offset limit (select %(behind_count)s / count(*) from keys)) r
               window w as (order by r.queue_offset)) f
    ), sized as (
        select d.*, sum(octet_length(d.body) + coalesce(octet_length(d.headers), 0)) over w as before,
               sum(case when d.place > 0 then octet_length(d.body) + coalesce(octet_length(d.headers), 0) end)
                   over w as before_behind
          from (select h.*, true as is_next from heads h union all select b.* from behind b where b.is_next) d
        window w as (order by d.place, d.first_due_at, d.queue_id, d.queue_offset
                     rows between unbounded preceding and 1 preceding)
    )
    select queue_id, attempt, generation, losses, {columns} from sized
     where coalesce(before, 0) < %(size_bytes)s
       and (place = 0 or coalesce(before_behind, 0) < %(behind_size_bytes)s)
     order by place, first_due_at, queue_id, queue_offset limit %(count)s
    """
).format(columns=MESSAGE_COLUMNS)


@lru_cache(maxsize=256)
def _group_lag_in(segment: int) -> sql.Composed:
    return sql.SQL(
        """
        with ends as (
            select q.id, q.topic_id, {end} as queue_end from txmsg.queue q)
        select g.name, t.name,
               sum(greatest(0, e.queue_end - c.next_offset - (
                   select coalesce(sum(upper(r) - lower(r)), 0) from unnest(c.acked) r)))::bigint,
               sum((select count(*) from txmsg.retry r
                     where r.group_id = c.group_id and r.queue_id = c.queue_id))::bigint,
               sum((select count(*) from txmsg.dead_letter d
                     where d.group_id = c.group_id and d.queue_id = c.queue_id))::bigint
          from txmsg.effective_cursor c
          join txmsg.consumer_group g on g.id = c.group_id
          join ends e on e.id = c.queue_id
          join txmsg.topic t on t.id = e.topic_id
         where %(groups)s::int[] is null or c.group_id = any(%(groups)s::int[])
         group by g.name, t.name order by g.name, t.name
        """
    ).format(end=QUEUE_END.format(partition=partition(segment), segment=sql.Literal(segment)))


async def group_lag(conn: Connection, segment: int, groups: Sequence[int] | None = None) -> list[GroupLag]:
    """Return the lag of each group, or of each of these, in each topic, by the cursors as written.

    segment: the open one.
    """
    given = {"groups": None if groups is None else list(groups)}
    cursor = await plain_cursor(conn).execute(_group_lag_in(segment), given, prepare=False)
    return [
        GroupLag(group=group, topic=topic, waiting=waiting, retrying=retrying, dead=dead)
        for group, topic, waiting, retrying, dead in await cursor.fetchall()
    ]
