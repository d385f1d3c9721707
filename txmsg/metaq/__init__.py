"""MetaQ: an ordered log of many queues, usable with no broker, no PostgreSQL and no server.

format      what stands in it: frames, and batches that are read   (pure)
store       the log in a directory: files, the one writer, readers
fsck        looks at every byte, and mends
group       who owns which queue, and how far each came
access      how a log is used, the same wherever it is
location    gives it, for any of these
local       a log in a directory, as `access` has it
remote      a log at an address, as `access` has it
kafka       a log in Apache Kafka, as `access` has it
acks        what a sender waits for
spool, relay   batches on disk while a log is away; appended by a thread
finding     finds a message by its id
copy        copies of a log on other machines
server      serves a log to other machines
protocol    values of a log as messages of the wire
consumer, producer    what users make
tables, export        ranges of topics as Arrow and as files, without a group

docs/log_format.md names every byte. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from txmsg.metaq.access import LogAccess, LogQueue, Member
    from txmsg.metaq.acks import Acks
    from txmsg.metaq.consumer.async_consumer import AsyncLogConsumer
    from txmsg.metaq.consumer.consumer import LogConsumer
    from txmsg.metaq.consumer.polls import PolledBatch
    from txmsg.metaq.format.batch import SCHEMA, LogBatch, to_arrow
    from txmsg.metaq.group.assignment import Strategy, averaged
    from txmsg.metaq.location import open_log
    from txmsg.metaq.producer import LogProducer, Place
    from txmsg.metaq.store.log import Log, LogConfig
    from txmsg.metaq.store.topics import Flush, TopicSettings
    from txmsg.metaq.tables import TABLE_SCHEMA, read_arrow

__all__ = [
    "SCHEMA",
    "TABLE_SCHEMA",
    "Acks",
    "AsyncLogConsumer",
    "Flush",
    "Log",
    "LogAccess",
    "LogBatch",
    "LogConfig",
    "LogConsumer",
    "LogProducer",
    "LogQueue",
    "Member",
    "Permission",
    "Place",
    "PolledBatch",
    "Strategy",
    "TopicSettings",
    "averaged",
    "open_log",
    "read_arrow",
    "to_arrow",
]

_MODULES = {
    "access": ("LogAccess", "LogQueue", "Member"),
    "acks": ("Acks",),
    "location": ("open_log",),
    "consumer.async_consumer": ("AsyncLogConsumer",),
    "consumer.consumer": ("LogConsumer",),
    "consumer.polls": ("PolledBatch",),
    "format.batch": ("SCHEMA", "LogBatch", "to_arrow"),
    "group.assignment": ("Strategy", "averaged"),
    "producer": ("LogProducer", "Place"),
    "store.log": ("Log", "LogConfig"),
    "tables": ("TABLE_SCHEMA", "read_arrow"),
    "store.topics": ("Flush", "Permission", "TopicSettings"),
}
_MODULE_OF = {name: f"txmsg.metaq.{module}" for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for an object
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
