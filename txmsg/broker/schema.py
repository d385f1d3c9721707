"""The tables of the Notify database as SQLAlchemy Core: what the migrations must add up to (a test compares).

Statements live in `txmsg.broker.store`; partitions are made by the database function `txmsg.add_segment_1`.
"""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Double,
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
from sqlalchemy.dialects.postgresql import INT8MULTIRANGE, JSONB, OID, TIMESTAMP

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
    Column("shard", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    Column("works_from", Text, nullable=False, server_default=text("'0001'")),
)
Table(
    "incarnation",  # unlogged
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default=text("true")),
    Column("id", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    Column("server_started_at", _moment(), nullable=False),
    Column("database", OID, nullable=False),
)
Table(
    "topic",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("queue_count", Integer, nullable=False),
    Column("created_at", _moment(), nullable=False, server_default=func.now()),
    Column("write_queues", Integer),
    Column("read_queues", Integer),
    Column("ordered_queues", Integer),
    Column("permission", SmallInteger, nullable=False, server_default=text("6")),
    Column("durability", Text, nullable=False, server_default=text("'sync'")),
    Column("unread", Text, nullable=False, server_default=text("'keep'")),
    Column("send_rate_max", Double),
    Column("version", BigInteger, nullable=False, server_default=text("0")),
    Column("write_changed_at", _moment(), nullable=False, server_default=func.now()),
    Index("topic_durability", "durability", postgresql_where=text("durability <> 'sync'")),
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
    "memory_queue",  # unlogged
    metadata,
    Column("queue", ForeignKey("txmsg.queue.id", ondelete="CASCADE"), primary_key=True),
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
    Column("ordering_key", Text),
    Column("order_seq", BigInteger),
    Column("decided", Boolean, nullable=False, server_default=text("false")),
    Column("decided_by", SmallInteger),
    Column("deliver_at", _moment()),
)
_ORDER = (_half.c.queue, _half.c.ordering_key, _half.c.order_seq)
Index("half_message_undecided", *_ORDER, postgresql_where=text("ordering_key is not null and not decided"))
Index("half_message_held_back", *_ORDER, postgresql_where=text("decided"))
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
    Column("dropping", Boolean, nullable=False, server_default=text("false")),
    Index("segment_one_open", "state", unique=True, postgresql_where=text("state = 'open'")),
)
Table(
    "check_policy",
    metadata,
    Column("group_name", Text, primary_key=True),
    Column("first_check_s", Double),
    Column("check_interval_s", Double),
    Column("checks_max", Integer),
    Column("no_client_park_s", Double),
)
Table(
    "clock_step",
    metadata,
    Column("segment", ForeignKey("txmsg.segment.id", ondelete="CASCADE"), primary_key=True),
    Column("queue", Integer, primary_key=True, autoincrement=False),
    Column("queue_offset", BigInteger, primary_key=True, autoincrement=False),
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
    Column("ordering_key", Text),
    Column("half_stored_at", _moment()),
    Column("decided_by", SmallInteger),
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
    Column("committed", Boolean, nullable=False, server_default=text("false")),
    postgresql_partition_by="LIST (segment)",
)
Table(
    "scheduled",
    metadata,
    Column("transaction_id", Uuid, primary_key=True),
    Column("n", SmallInteger, primary_key=True, autoincrement=False),
    Column("due_at", _moment(), nullable=False),
    Column("queue", Integer, nullable=False),
    *_content(),
    Column("stored_at", _moment(), nullable=False, server_default=func.now()),
    Column("half_stored_at", _moment()),
    Column("decided_by", SmallInteger, nullable=False),
    Index("scheduled_due", "due_at"),
)
Table(
    "consumer_group",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created_at", _moment(), nullable=False, server_default=func.now()),
    Column("retry_delays_s", ARRAY(Double)),
    Column("retries_max", Integer),
    Column("poisoned_key", Text, nullable=False, server_default=text("'continue'")),
    Column("deliver_rate_max", Double),
    Column("expires_after_s", Double),
    Column("seen_at", _moment(), nullable=False, server_default=func.now()),
    Column("version", BigInteger, nullable=False, server_default=text("0")),
)


def _of_group() -> list[Column[object]]:
    return [
        Column("group_id", ForeignKey("txmsg.consumer_group.id", ondelete="CASCADE"), primary_key=True),
        Column("queue_id", ForeignKey("txmsg.queue.id"), primary_key=True),
    ]


def _of_failures() -> list[Column[object]]:
    return [
        Column("ordering_key", Text),
        Column("failures", JSONB, nullable=False, server_default=text("'[]'")),
        Column("generation", Integer, nullable=False, server_default=text("0")),
    ]


Table(
    "cursor",
    metadata,
    *_of_group(),
    Column("next_offset", BigInteger, nullable=False),
    Column("acked", INT8MULTIRANGE, nullable=False, server_default=text("'{}'")),
    Column("epoch", BigInteger, nullable=False),
    Column("updated_at", _moment(), nullable=False, server_default=func.now()),
    Column("held_until", _moment()),
    Column("held_s", Double),
    Column("seek_to", BigInteger),
    Column("generation", Integer, nullable=False, server_default=text("0")),
    Column("again_from", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    Column("again_generations", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
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
    *_of_failures(),
    Index("retry_due", "group_id", "due_at"),
    Index(
        "retry_key",
        *("group_id", "queue_id", "ordering_key", "queue_offset"),
        postgresql_where=text("ordering_key is not null"),
    ),
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
    *_of_failures(),
    Column("blocks_key", Boolean, nullable=False, server_default=text("false")),
    Index("dead_letter_died_at", "group_id", "died_at"),
    Index("dead_letter_blocks", "group_id", "queue_id", "ordering_key", postgresql_where=text("blocks_key")),
)
Table(
    "lease",
    metadata,
    Column("name", Text, primary_key=True),
    Column("broker_id", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_at", _moment(), nullable=False),
)
Table(
    "broker",
    metadata,
    Column("id", Text, primary_key=True),
    Column("address", Text, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'active'")),
    Column("release", Text, nullable=False),
    Column("schema_revision", Text, nullable=False),
    Column("started_at", _moment(), nullable=False, server_default=func.now()),
    Column("heartbeat_at", _moment(), nullable=False, server_default=func.now()),
    Column("expires_at", _moment(), nullable=False),
)
Table(
    "queue_lease",
    metadata,
    Column("queue_id", ForeignKey("txmsg.queue.id", ondelete="CASCADE"), primary_key=True),
    Column("broker_id", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("wanted_by", Text),
    Index("queue_lease_broker", "broker_id"),
)
Table(
    "mirror",
    metadata,
    Column("name", Text, primary_key=True),
    Column("include", ARRAY(Text), nullable=False),
    Column("exclude", ARRAY(Text), nullable=False),
    Column("log", Text),
    Column("generation", Integer),
    Column("created_at", _moment(), nullable=False, server_default=func.now()),
    Column("seen_at", _moment()),
)
Table(
    "mirror_queue",
    metadata,
    Column("mirror", ForeignKey("txmsg.mirror.name", ondelete="CASCADE"), primary_key=True),
    Column("queue", ForeignKey("txmsg.queue.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("updated_at", _moment(), nullable=False, server_default=func.now()),
    Column("stopped", Text),
)
