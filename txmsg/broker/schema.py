"""The tables of the Notify database as SQLAlchemy Core: what the migrations must add up to (a test compares).

Statements live in `txmsg.broker.store`; partitions are made by the database function `txmsg.add_segment_1`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import INT8MULTIRANGE, TIMESTAMP

__all__ = ["metadata"]

metadata = MetaData(schema="txmsg")


def _moment() -> TIMESTAMP:
    return TIMESTAMP(timezone=True)


def _content() -> list[Column[object]]:
    """The columns in which a message travels, alike wherever a copy of it stands."""
    return [
        Column("key", Text),
        Column("tag", Text),
        Column("headers", LargeBinary),
        Column("body", LargeBinary, nullable=False),
        Column("born_at", _moment(), nullable=False),
    ]


Table(
    "notify_db",
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default=text("true")),
    Column("home", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
)
Table(
    "topic",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("queue_count", Integer, nullable=False),
    Column("created_at", _moment(), nullable=False, server_default=func.now()),
)
Table(
    "queue",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("topic_id", ForeignKey("txmsg.topic.id"), nullable=False),
    Column("number", Integer, nullable=False),
    UniqueConstraint("topic_id", "number"),
)
Table(
    "producer",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("group_name", Text, nullable=False),
    Column("fence_id", Uuid),
    UniqueConstraint("group_name", "fence_id", postgresql_nulls_not_distinct=True),
)
_half = Table(
    "half_message",
    metadata,
    Column("transaction_id", Uuid, primary_key=True),
    Column("n", SmallInteger, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("queue", Integer, nullable=False),
    Column("producer", Integer, nullable=False),
    *_content(),
    Column("stored_at", _moment(), nullable=False, server_default=func.now()),
    Column("next_check_at", _moment()),
    Column("checks", Integer, nullable=False, server_default=text("0")),
    Column("parked_reason", Text),
)
Index("half_message_next_check_at", _half.c.next_check_at, postgresql_where=_half.c.next_check_at.is_not(None))
Index("half_message_parked", _half.c.transaction_id, postgresql_where=_half.c.parked_reason.is_not(None))
Table(
    "segment",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("created_at", _moment(), nullable=False, server_default=func.now()),
    Column("opened_at", _moment()),
    Column("closed_at", _moment()),
    Index("segment_one_open", "state", unique=True, postgresql_where=text("state = 'open'")),
)
Table(
    "segment_base",
    metadata,
    Column("segment", ForeignKey("txmsg.segment.id", ondelete="CASCADE"), primary_key=True),
    Column("queue", Integer, primary_key=True, autoincrement=False),
    Column("base", BigInteger, nullable=False),
)
Table(
    "message",
    metadata,
    Column("segment", Integer, primary_key=True, autoincrement=False),
    Column("queue", Integer, primary_key=True, autoincrement=False),
    Column("queue_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("transaction_id", Uuid, nullable=False),
    Column("n", SmallInteger, nullable=False),
    *_content(),
    Column("stored_at", _moment(), nullable=False, server_default=func.now()),
    UniqueConstraint("segment", "transaction_id", "n", name="message_once_in_segment"),
    Index("message_key", "key", postgresql_where=text("key is not null")),
    postgresql_partition_by="LIST (segment)",
)
Table(
    "rolled_back",
    metadata,
    Column("segment", Integer, primary_key=True, autoincrement=False),
    Column("transaction_id", Uuid, primary_key=True),
    Column("at", _moment(), nullable=False, server_default=func.now()),
    postgresql_partition_by="LIST (segment)",
)
Table(
    "consumer_group",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created_at", _moment(), nullable=False, server_default=func.now()),
)


def _of_group() -> list[Column[object]]:
    return [
        Column("group_id", ForeignKey("txmsg.consumer_group.id", ondelete="CASCADE"), primary_key=True),
        Column("queue_id", ForeignKey("txmsg.queue.id"), primary_key=True),
    ]


Table(
    "cursor",
    metadata,
    *_of_group(),
    Column("next_offset", BigInteger, nullable=False),
    Column("acked", INT8MULTIRANGE, nullable=False, server_default=text("'{}'")),
    Column("epoch", BigInteger, nullable=False),
    Column("updated_at", _moment(), nullable=False, server_default=func.now()),
)
Table(
    "retry",
    metadata,
    *_of_group(),
    Column("queue_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("due_at", _moment(), nullable=False),
    Column("transaction_id", Uuid, nullable=False),
    Column("n", SmallInteger, nullable=False),
    *_content(),
    Column("stored_at", _moment(), nullable=False),
    Column("last_error", Text),
    Index("retry_due", "group_id", "due_at"),
)
Table(
    "dead_letter",
    metadata,
    *_of_group(),
    Column("queue_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("attempts", Integer, nullable=False),
    Column("died_at", _moment(), nullable=False, server_default=func.now()),
    Column("transaction_id", Uuid, nullable=False),
    Column("n", SmallInteger, nullable=False),
    *_content(),
    Column("stored_at", _moment(), nullable=False),
    Column("last_error", Text),
)
Table(
    "lease",
    metadata,
    Column("name", Text, primary_key=True),
    Column("broker_id", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_at", _moment(), nullable=False),
)
