"""Figures that the database alone has, for rules: the lag of mirrors, and results of an operator's own statements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import psycopg

from txmsg.broker.alerts.file import SqlRule
from txmsg.broker.store import mirrors as store
from txmsg.broker.store.connect import Connection, answering_within, query_session
from txmsg.checks.conditions import MIRROR, Labels
from txmsg.errors import BrokerUnavailable

ALERTS_MAX: Final = 100
"""Maximum number of alerts of one custom rule: those furthest beyond its threshold."""
ROWS_MAX: Final = 10_000
"""Maximum number of rows that its statement may return."""
_VALUE: Final = "value"
_LABEL_LENGTH_MAX: Final = 200


async def mirrors(conn: Connection) -> dict[str, dict[Labels, float]]:
    """Return the metrics of tailers as the database knows them, by mirror."""
    found: dict[str, dict[Labels, float]] = {
        "txmsg_mirror_tailing": {},
        "txmsg_mirror_lag_seconds": {},
        "txmsg_mirror_stopped_queues": {},
        "txmsg_mirror_safe_bytes": {},
    }
    for mirror in await store.mirrors(conn):
        labels: Labels = frozenset({(MIRROR, mirror.name)})
        found["txmsg_mirror_tailing"][labels] = float(mirror.is_tailing)
        found["txmsg_mirror_lag_seconds"][labels] = mirror.behind_s
        found["txmsg_mirror_stopped_queues"][labels] = mirror.stopped_queues
        if mirror.safe_bytes is not None:
            found["txmsg_mirror_safe_bytes"][labels] = mirror.safe_bytes
    return found


class RuleFailed(Exception):
    """A custom rule has no result; the text is the reason, without a secret."""


async def rows_of(rule: SqlRule) -> dict[Labels, float]:
    """Return the present result of a rule's statement, with a timeout, in a read-only transaction.

    Raises RuleFailed.
    """
    try:
        async with query_session(rule.database.reveal(), timeout_s=rule.timeout_s) as conn:
            with answering_within(conn, rule.timeout_s + 1.0):
                # The extended protocol takes one statement only: a second one could end the read-only transaction.
                cursor = conn.cursor(binary=True)
                await cursor.execute(rule.sql.encode(), prepare=True)
                columns = [column.name for column in cursor.description or ()]
                rows = await cursor.fetchmany(ROWS_MAX + 1)
    except BrokerUnavailable:
        raise RuleFailed(f"its database did not answer within {rule.timeout_s:g} s") from None
    except psycopg.Error as exc:
        if exc.sqlstate is None:
            raise RuleFailed("its database cannot be reached") from None
        raise RuleFailed(f"its database answered: {exc.diag.message_primary} ({exc.sqlstate})") from None
    if len(rows) > ROWS_MAX:
        raise RuleFailed(f"its statement returned more than {ROWS_MAX:,} rows: add a `where`, or aggregate")
    return values_of(columns, rows)


def values_of(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[Labels, float]:
    """Return numbers by the other columns of their rows: the column `value`, or the only one. Raises RuleFailed."""
    if not columns or (len(columns) > 1 and _VALUE not in columns):
        raise RuleFailed("its statement must return one column, or a column `value` and others that are labels")
    place = columns.index(_VALUE) if _VALUE in columns else 0
    found: dict[Labels, float] = {}
    for row in rows:
        if row[place] is None:
            continue
        try:
            number = float(row[place])
        except (TypeError, ValueError):
            raise RuleFailed(f"its statement returned a {type(row[place]).__name__}, not a number") from None
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise RuleFailed("its statement returned a number that is not finite, or beyond 1e308")
        labels = {name: str(of)[:_LABEL_LENGTH_MAX] for name, of in zip(columns, row, strict=True)}
        labels.pop(columns[place])
        found[frozenset(labels.items())] = number
    return found


class Beyond(NamedTuple):
    """Values beyond the threshold of a rule: at most ALERTS_MAX, and the number of further ones."""

    values: dict[Labels, float]
    more: int


def beyond(rule: SqlRule, values: Mapping[Labels, float]) -> Beyond:
    """Return the values beyond the threshold of the rule, the furthest first."""
    found = {
        labels: (value, excess)
        for labels, value in values.items()
        if (excess := max(_excess(value, rule.above, 1), _excess(value, rule.below, -1))) > 0
    }
    first = sorted(found, key=lambda labels: (-found[labels][1], sorted(labels)))[:ALERTS_MAX]
    return Beyond({labels: found[labels][0] for labels in first}, len(found) - len(first))


def _excess(value: float, threshold: float | None, sign: int) -> float:
    return 0.0 if threshold is None else sign * (value - threshold)
