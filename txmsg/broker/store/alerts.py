"""Statements on alerts: their state, silences, notifications, and the claim by which one broker evaluates the database.

All times are the database's. The caller owns the connection and the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from txmsg.administration.alerts import ActiveAlert, AlertReceiver, AlertState, NewSilence, Silence
from txmsg.broker.store.connect import Connection
from txmsg.broker.store.delivery import plain_cursor, scalar_cursor
from txmsg.checks.check import Severity
from txmsg.errors import MisuseError

DATABASE: Final = "(database)"
"""The source of alerts that any broker may evaluate. A broker's id never has parentheses."""
ROUND_S_MAX: Final = 60.0
"""Seconds that a broker may take to evaluate the database; after that another broker begins a round."""
SILENCES_MAX: Final = 1000
WAITING_MAX: Final = 1000
"""Maximum number of notifications waiting for one receiver; the oldest are dropped."""
_HISTORY_S: Final = 30 * 86_400.0
_HISTORY_MAX: Final = 10_000
_GIVEN_UP_S: Final = 86_400.0
"""Seconds for which a notification is retried."""

_COLUMNS: Final = (
    "id, source, rule, labels, severity, summary, action, state, value, since, seen_at, fired_at, resolved_at, "
    "notified_at"
)
_FIELDS: Final = tuple(_COLUMNS.split(", "))


class Notification(NamedTuple):
    """A message to a receiver, as stored."""

    id: int
    receiver: str
    content: dict[str, Any]
    created_at: datetime
    attempts: int


# ---- looks


async def claim_round(conn: Connection, broker_id: str, interval_s: float) -> int | None:
    """Claim a round of evaluating the database and return its number.

    None if a round began within the interval, or if an unfinished one may still be in progress at its broker.
    """
    # Compare and set in one statement, without an advisory lock: a broker that is paused after it has claimed a round
    # holds no lock, and its claim expires after ROUND_S_MAX.
    cursor = await scalar_cursor(conn).execute(
        """
        update txmsg.alert_round set round = round + 1, begun_at = now(), is_finished = false, broker_id = %(broker)s
         where begun_at > now() + interval '1 minute'  -- the clock was set back
            or begun_at <= now() - make_interval(secs => %(interval_s)s)
               and (is_finished or begun_at <= now() - make_interval(secs => %(lease_s)s))
        returning round
        """,
        {"broker": broker_id, "interval_s": interval_s, "lease_s": ROUND_S_MAX},
    )
    found: int | None = await cursor.fetchone()
    return found


async def finish_round(conn: Connection, number: int) -> bool:
    """End a round, in the transaction that writes its findings. Returns False if another broker has begun one since."""
    cursor = await plain_cursor(conn).execute(
        "update txmsg.alert_round set is_finished = true where round = %s", (number,)
    )
    return cursor.rowcount == 1


async def clock(conn: Connection) -> datetime:
    """Return the database's current time.

    Not now(), the time at which the transaction began: it may have waited for locks since.
    """
    cursor = await scalar_cursor(conn).execute("select clock_timestamp()")
    now = await cursor.fetchone()
    assert isinstance(now, datetime)
    return now


async def active(conn: Connection, sources: Sequence[str]) -> list[ActiveAlert]:
    """Return the pending and firing alerts of these sources, and lock them.

    Only the broker of a source changes its alerts, but two rounds of that broker may overlap.
    """
    # FOR UPDATE, in the order of ids: a second round of the same broker waits for the first, and reads its changes.
    cursor = await plain_cursor(conn).execute(
        f"select {_COLUMNS} from txmsg.alert where source = any(%s) and state <> 'resolved' order by id for update",
        (list(sources),),
    )
    return [_alert(row) for row in await cursor.fetchall()]


async def sources_left(conn: Connection) -> list[str]:
    """Return the ids of brokers that have active alerts and are not alive, so that no broker evaluates them."""
    cursor = await scalar_cursor(conn).execute(
        """
        select distinct a.source from txmsg.alert a
         where a.state <> 'resolved' and a.source <> %(database)s and not exists (
               select from txmsg.broker b where b.id = a.source and b.state <> 'dead' and b.expires_at >= now())
        """,
        {"database": DATABASE},
    )
    return await cursor.fetchall()


async def write(conn: Connection, alerts: Sequence[ActiveAlert], forgotten: Sequence[int]) -> list[ActiveAlert]:
    """Store alerts, insert new ones, and delete the forgotten. Returns the stored ones with their ids."""
    if forgotten:
        await conn.execute("delete from txmsg.alert where id = any(%s)", (list(forgotten),))
    # One statement: each look changes seen_at, and mostly value, of every alert whose condition holds.
    known = [_values(alert) for alert in alerts if alert.id]
    if known:
        cursor = await plain_cursor(conn).execute(_UPDATE, {name: [each[name] for each in known] for name in _FIELDS})
        assert cursor.rowcount == len(known)  # they are locked
    return [alert if alert.id else await _add(conn, alert) for alert in alerts]


async def _add(conn: Connection, alert: ActiveAlert) -> ActiveAlert:
    cursor = await scalar_cursor(conn).execute(_INSERT, _values(alert))
    # Row by row: new alerts are rare, and each needs the id that its insert returns.
    alert_id = await cursor.fetchone()
    assert isinstance(alert_id, int)
    return replace(alert, id=alert_id)


def _values(alert: ActiveAlert) -> dict[str, Any]:
    values = {name: getattr(alert, name) for name in _FIELDS}
    # value may be an int; an array has one type.
    return values | {
        "labels": Jsonb(dict(alert.labels)),
        "severity": alert.severity.value,
        "state": alert.state.value,
        "value": float(alert.value),
    }


_INSERT = """
    insert into txmsg.alert (source, rule, labels, severity, summary, action, state, value, since, seen_at, fired_at,
                             resolved_at, notified_at)
    values (%(source)s, %(rule)s, %(labels)s, %(severity)s, %(summary)s, %(action)s, %(state)s, %(value)s, %(since)s,
            %(seen_at)s, %(fired_at)s, %(resolved_at)s, %(notified_at)s)
    returning id
"""
_UPDATE = """
    update txmsg.alert a
       set severity = n.severity, summary = n.summary, action = n.action, state = n.state, value = n.value,
           seen_at = n.seen_at, fired_at = n.fired_at, resolved_at = n.resolved_at, notified_at = n.notified_at
      from unnest(%(id)s::bigint[], %(severity)s::text[], %(summary)s::text[], %(action)s::text[], %(state)s::text[],
                  %(value)s::float8[], %(seen_at)s::timestamptz[], %(fired_at)s::timestamptz[],
                  %(resolved_at)s::timestamptz[], %(notified_at)s::timestamptz[])
           n(id, severity, summary, action, state, value, seen_at, fired_at, resolved_at, notified_at)
     where a.id = n.id
"""


async def forget_old(conn: Connection) -> None:
    """Delete old resolved alerts, ended silences, and notifications that were retried in vain."""
    await conn.execute(
        """
        delete from txmsg.alert
         where state = 'resolved' and (
               resolved_at < now() - make_interval(secs => %(history_s)s)
               or resolved_at < (select resolved_at from txmsg.alert where state = 'resolved'
                                  order by resolved_at desc offset %(history)s limit 1))
        """,
        {"history_s": _HISTORY_S, "history": _HISTORY_MAX},
    )
    await conn.execute("delete from txmsg.alert_silence where until < now() - make_interval(secs => %s)", (_HISTORY_S,))
    await conn.execute(
        """
        delete from txmsg.alert_notification n
         where created_at < now() - make_interval(secs => %(given_up_s)s)
            or n.id <= (select o.id from txmsg.alert_notification o where o.receiver = n.receiver
                         order by o.id desc offset %(waiting)s limit 1)
        """,
        {"given_up_s": _GIVEN_UP_S, "waiting": WAITING_MAX},
    )


# ---- for people


async def listed(conn: Connection) -> list[ActiveAlert]:
    """Return firing and pending alerts, newest first."""
    cursor = await plain_cursor(conn).execute(
        f"select {_COLUMNS} from txmsg.alert where state <> 'resolved' order by state, since desc, id desc limit 10000"
    )
    return [_alert(row) for row in await cursor.fetchall()]


async def history(conn: Connection, limit: int) -> list[ActiveAlert]:
    """Return up to `limit` resolved alerts, the last resolved first."""
    cursor = await plain_cursor(conn).execute(
        f"select {_COLUMNS} from txmsg.alert where state = 'resolved' order by resolved_at desc, id desc limit %s",
        (limit,),
    )
    return [_alert(row) for row in await cursor.fetchall()]


def _alert(row: Sequence[Any]) -> ActiveAlert:
    values = dict(zip(_FIELDS, row, strict=True))
    labels, severity, state = values["labels"], Severity(values["severity"]), AlertState(values["state"])
    return ActiveAlert(**values | {"labels": dict(sorted(labels.items())), "severity": severity, "state": state})


# ---- silences


async def silences(conn: Connection) -> list[Silence]:
    """Return the silences in effect, the next to end first."""
    async with conn.cursor(row_factory=class_row(Silence)) as cursor:
        await cursor.execute(
            "select id, matchers, reason, created_by, created_at, until from txmsg.alert_silence "
            "where until > clock_timestamp() order by until, id"
        )
        return await cursor.fetchall()


async def silence(conn: Connection, new: NewSilence) -> Silence:
    """Add a silence that begins now. Raises MisuseError if there are too many."""
    async with conn.cursor(row_factory=class_row(Silence)) as cursor:
        await cursor.execute(
            """
            insert into txmsg.alert_silence (matchers, reason, created_by, until)
            select %(matchers)s, %(reason)s, %(created_by)s, now() + make_interval(secs => %(for_s)s)
             where (select count(*) from txmsg.alert_silence where until > now()) < %(max)s
            returning id, matchers, reason, created_by, created_at, until
            """,
            asdict(new) | {"max": SILENCES_MAX},
        )
        found = await cursor.fetchone()
    if found is None:
        raise MisuseError(f"there are {SILENCES_MAX} silences: end some with `txmsg alert unsilence`")
    return found


async def unsilence(conn: Connection, silence_id: int) -> bool:
    """End a silence. Returns True if it was in effect."""
    cursor = await plain_cursor(conn).execute(
        "update txmsg.alert_silence set until = now() where id = %s and until > now()", (silence_id,)
    )
    return cursor.rowcount == 1


# ---- notifications


async def add_notification(conn: Connection, receiver: str, content: dict[str, Any]) -> None:
    """Queue a notification for a receiver, behind its earlier ones."""
    await conn.execute(
        "insert into txmsg.alert_notification (receiver, content) values (%s, %s)", (receiver, Jsonb(content))
    )


async def claim_notification(conn: Connection, receiver: str, lease_s: float) -> Notification | None:
    """Return the next notification of a receiver if it is due, and claim it for lease_s seconds.

    Later notifications of the receiver wait for it.
    """
    async with conn.cursor(row_factory=class_row(Notification)) as cursor:
        await cursor.execute(
            """
            update txmsg.alert_notification
               set attempts = attempts + 1, next_try_at = now() + make_interval(secs => %(lease_s)s)
             where id = (select min(id) from txmsg.alert_notification where receiver = %(receiver)s)
                   and next_try_at <= now()
            returning id, receiver, content, created_at, attempts
            """,
            {"receiver": receiver, "lease_s": lease_s},
        )
        return await cursor.fetchone()


async def delivered(conn: Connection, notification_id: int) -> None:
    """Delete a notification that its receiver has accepted."""
    await conn.execute("delete from txmsg.alert_notification where id = %s", (notification_id,))


async def failed(conn: Connection, notification_id: int, error: str, again_s: float) -> None:
    """Note that a notification was not delivered, as far as is known. It is retried after again_s seconds."""
    await conn.execute(
        """
        update txmsg.alert_notification
           set last_error = %(error)s, next_try_at = now() + make_interval(secs => %(again_s)s)
         where id = %(id)s
        """,
        {"id": notification_id, "error": error, "again_s": again_s},
    )


async def waiting(conn: Connection) -> list[AlertReceiver]:
    """Return the receivers with undelivered notifications, by name."""
    async with conn.cursor(row_factory=class_row(AlertReceiver)) as cursor:
        await cursor.execute(
            """
            select receiver as name, count(*) as waiting, (array_agg(attempts order by id))[1] as attempts,
                   (array_agg(last_error order by id))[1] as last_error
              from txmsg.alert_notification group by receiver order by receiver
            """
        )
        return await cursor.fetchall()
