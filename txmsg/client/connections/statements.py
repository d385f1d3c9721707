"""The SQL of the rows that commit with the effects, for connections that SQLAlchemy does not know.

The rows are those of txmsg.checker.tables: what is written by SQLAlchemy's sessions and by these is the same.
"""

from __future__ import annotations

from typing import Final

from txmsg.checker.tables import fence_identity_table, fence_table, inbox_table, outbox_table

# Through the identity table: in another database nothing is written.
INSERT_FENCE: Final = (
    f"INSERT INTO {fence_table.name} (transaction_id, outcome) "
    f"SELECT %s, 'commit' FROM {fence_identity_table.name} WHERE fence_id = %s"
)
SELECT_FENCE: Final = f"SELECT 1 FROM {fence_table.name} WHERE transaction_id = %s AND outcome = 'commit'"
INSERT_INBOX: Final = f"INSERT INTO {inbox_table.name} (group_name, message_id, generation) VALUES (%s, %s, %s)"
RAISE_INBOX_BY_UPSERT: Final = (
    f"{INSERT_INBOX} ON CONFLICT (group_name, message_id) DO UPDATE SET generation = excluded.generation, "
    f"handled_at = CURRENT_TIMESTAMP WHERE {inbox_table.name}.generation < excluded.generation"
)
"""Of PostgreSQL and SQLite. Not by a SELECT before: see txmsg/client/receiving/inbox.py."""
RAISE_INBOX: Final = (
    f"UPDATE {inbox_table.name} SET generation = %s, handled_at = CURRENT_TIMESTAMP "
    "WHERE group_name = %s AND message_id = %s AND generation < %s"
)
"""Of MySQL, after an INSERT that met a row: its upsert does not tell whether it has changed one."""
SELECT_INBOX: Final = f"SELECT 1 FROM {inbox_table.name} WHERE group_name = %s AND message_id = %s AND generation = %s"
INSERT_OUTBOX: Final = (
    f"INSERT INTO {outbox_table.name} (group_name, transaction_id, ordering_key, messages, size_bytes) "
    "VALUES (%s, %s, %s, %s, %s)"
)
