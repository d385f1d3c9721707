"""Statements that restart waits after the database's clock was set back.

A row says until when something waits. If the wait began at a time that is still to come, the clock was set back since,
and the wait would last longer by as much: so it begins again now, with its full length. Waits that began before stay
unchanged. Statements skip locked rows, and are idempotent. The caller owns the transaction.
"""

from __future__ import annotations

from typing import Final

from txmsg.broker.store.connect import Connection
from txmsg.broker.store.delivery import plain_cursor


async def clock(conn: Connection) -> tuple[float, bool]:
    """Return the database's time in seconds since 1970, and True if the clock was set back while no broker ran.

    It was if the last heartbeat of a broker, or the time when one left, is still to come.
    """
    cursor = await plain_cursor(conn).execute(
        """
        select extract(epoch from clock_timestamp())::float8,
               exists (select from txmsg.broker where heartbeat_at > now() + interval '1 s')
            or exists (select from txmsg.lease_epoch where left_at > now() + interval '1 s')
        """
    )
    row = await cursor.fetchone()
    assert row is not None
    return row[0], row[1]


async def renew_checks(conn: Connection, interval_s: float) -> int:
    """Restart the waits of half messages for their next check. Returns their number.

    The first check waits as long as it did after storing, a later one for the interval of its producer group, or for
    interval_s if the group has none.
    """
    # Locked in the order of the ids, as by a batch that decides some of them meanwhile.
    cursor = await plain_cursor(conn).execute(_RENEW_CHECKS, {"interval_s": interval_s})
    return cursor.rowcount


_RENEW_CHECKS: Final = """
with late as materialized (
    select h.transaction_id,
           case when h.checks = 0 then h.next_check_at - h.stored_at
                else make_interval(secs => coalesce(c.check_interval_s, %(interval_s)s)) end as wait
      from txmsg.half_message h
      join txmsg.producer p on p.id = h.producer
      left join txmsg.check_policy c on c.group_name = p.group_name
     where h.next_check_at > now() and h.n = 0
       and (h.stored_at > now() or h.checks > 0)
     order by h.transaction_id
       for update of h skip locked
)
update txmsg.half_message h set next_check_at = now() + l.wait, stored_at = least(h.stored_at, now())
  from late l
 where h.transaction_id = l.transaction_id and h.n = 0 and h.next_check_at > now() + l.wait
"""


async def renew_retries(conn: Connection) -> int:
    """Restart the waits of retries, with the length that they had after the last failure. Returns their number.

    Retries that have not failed, but were freed or redriven, become due now.
    """
    cursor = await plain_cursor(conn).execute(
        """
        with late as materialized (
            select r.group_id, r.queue_id, r.queue_offset,
                   case when r.attempt = 0 or r.failures = '[]' then r.due_at
                        else (r.failures -> -1 ->> 'at')::timestamptz end as failed_at
              from txmsg.retry r
             where r.due_at > now() and r.due_at < 'infinity'
             order by r.group_id, r.queue_id, r.queue_offset
               for update skip locked
        )
        update txmsg.retry r
           set due_at = now() + (r.due_at - l.failed_at),
               failures = case when r.attempt = 0 or r.failures = '[]' then r.failures
                               else jsonb_set(r.failures, '{-1,at}', to_jsonb(now())) end
          from late l
         where r.group_id = l.group_id and r.queue_id = l.queue_id and r.queue_offset = l.queue_offset
           and l.failed_at > now()
        """
    )
    return cursor.rowcount


async def renew_delays(conn: Connection) -> int:
    """Restart the delays of messages that were sent with a delay, not with a time. Returns their number."""
    count = 0
    for table in ("half_message", "scheduled"):
        cursor = await plain_cursor(conn).execute(
            f"""
            with late as materialized (
                select m.transaction_id, m.n from txmsg.{table} m
                 where m.deliver_at - m.deliver_after > now() order by 1, 2 for update skip locked
            )
            update txmsg.{table} m set deliver_at = now() + m.deliver_after from late l
             where m.transaction_id = l.transaction_id and m.n = l.n
            """.encode()
        )
        count += cursor.rowcount
    return count


async def renew_alerts(conn: Connection, again_s: float) -> None:
    """Restart the waits of notifications, for at most again_s, the times for which alerts hold, and silences."""
    await conn.execute(
        "update txmsg.alert_notification set next_try_at = now() + make_interval(secs => %(again_s)s), "
        "created_at = least(created_at, now()) where next_try_at > now() + make_interval(secs => %(again_s)s)",
        {"again_s": again_s},
    )
    await conn.execute(
        "update txmsg.alert set since = least(since, now()), seen_at = least(seen_at, now()) "
        "where state <> 'resolved' and since > now()"
    )
    await conn.execute(
        "update txmsg.alert_silence set until = now() + (until - created_at), created_at = now() "
        "where created_at > now() and until > now()"
    )


async def renew_topics(conn: Connection, settled_s: float) -> None:
    """Count changes of topics, and the ages of groups and segments, from now on if they lie in the future.

    settled_s: seconds after which all brokers know of a change.
    """
    # Not least(): that of a null and a time is the time.
    await conn.execute("update txmsg.topic set write_changed_at = now() where write_changed_at > now()")
    await conn.execute(
        "update txmsg.topic set erasable_since = now() + make_interval(secs => %(settled_s)s) "
        "where erasable_since > now() + make_interval(secs => %(settled_s)s)",
        {"settled_s": settled_s},
    )
    await conn.execute("update txmsg.consumer_group set seen_at = now() where seen_at > now()")
    await conn.execute("update txmsg.segment set opened_at = now() where opened_at > now()")
    await conn.execute("update txmsg.segment set closed_at = now() where closed_at > now()")
