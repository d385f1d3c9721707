"""The clock of tests moves every due time in the schema."""

from __future__ import annotations

import re

import psycopg

from txmsg.testing.clock import MOVES

PAST = {
    *("access_key.created_at", "access_rule.created_at", "access_token.created_at", "access_user.created_at"),
    *("alert.fired_at", "alert.notified_at", "alert.resolved_at", "alert.seen_at", "alert.since"),
    *("alert_notification.created_at", "alert_round.begun_at", "alert_silence.created_at"),
    *("audit.at", "body_key.erased_at", "broker.heartbeat_at", "broker.started_at", "incarnation.server_started_at"),
    *("consumer_group.created_at", "consumer_group.seen_at", "cursor.updated_at"),
    *("dead_letter.born_at", "dead_letter.died_at", "dead_letter.stored_at"),
    *("half_message.born_at", "half_message.stored_at"),
    *("message.born_at", "message.half_stored_at", "message.stored_at"),
    *("mirror.created_at", "mirror.seen_at", "mirror_queue.updated_at"),
    *(
        "journal.at",
        "lease_epoch.left_at",
        "retry.born_at",
        "retry.stored_at",
        "rolled_back.at",
        "rolled_back.half_stored_at",
    ),
    *("scheduled.born_at", "scheduled.half_stored_at", "scheduled.stored_at"),
    *("segment.closed_at", "segment.created_at", "segment.opened_at", "setting_change.changed_at"),
    "topic_schema.registered_at",
    *("topic.created_at", "topic.erasable_since", "topic.journal_since", "topic.write_changed_at"),
}
LEASES = {"broker.expires_at", "cursor.held_until"}
"""Measured by brokers in memory as well."""
TOLD = {
    "access_token.expires_at",
    "alert_notification.next_try_at",
    "body_key.expires_at",
    "alert_silence.until",
    "journal.until",
}
"""Times of tokens, alerts, keys and displays: no message waits for them."""

COLUMNS = """
select c.relname || '.' || a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
 where c.relnamespace = 'txmsg'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
   and a.atttypid = 'timestamptz'::regtype and a.attnum > 0
"""


def test_every_time_column_is_classified_as_moved_past_or_lease(notify_url: str) -> None:
    moved = {f"{table}.{column}" for table, column in re.findall(r"update txmsg\.(\w+) set (\w+) =", " ".join(MOVES))}
    assert moved == {"half_message.next_check_at", "half_message.deliver_at", "retry.due_at", "scheduled.deliver_at"}
    with psycopg.connect(notify_url) as connection:
        columns = {name for (name,) in connection.execute(COLUMNS)}
    assert columns == moved | PAST | LEASES | TOLD
