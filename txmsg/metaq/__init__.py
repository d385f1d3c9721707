"""MetaQ: an ordered log of many queues. It needs no broker, no PostgreSQL and no server.

format      frames, and batches that are read   (pure)
store       the log in a directory: files, the only writer, readers
fsck        checks every byte, and repairs
group       members of groups, their queues and offsets
interface   the interface of a log, the same wherever it is
location    opens a log by its address
local       a log in a directory, with this interface
remote      a log at a server, with this interface
kafka       a log in Apache Kafka, with this interface
acks        what a sender waits for
spool, relay   batches on disk while a log is unavailable; a thread that appends them
finding     finds a message by its id
copy        copies of a log on other machines
server      serves a log to other machines
agent       follows log files, and appends their lines
protocol    converts values of a log to messages of the wire protocol
consumer, producer    what applications use
tables, export        ranges of topics as Arrow and as files, without a group

docs/log_format.md specifies every byte. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from txmsg.metaq.acks import Acks
    from txmsg.metaq.consumer.async_pull_consumer import AsyncPullConsumer
    from txmsg.metaq.consumer.polls import PolledBatch
    from txmsg.metaq.consumer.pull_consumer import PullConsumer
    from txmsg.metaq.format.batch import SCHEMA, LogBatch, to_arrow
    from txmsg.metaq.group.assignment import Strategy, averaged
    from txmsg.metaq.interface import LogAccess, LogQueue, Member
    from txmsg.metaq.location import open_log
    from txmsg.metaq.producer import LogProducer, Place
    from txmsg.metaq.store.log import Log, LogConfig
    from txmsg.metaq.store.topics import Flush, TopicSettings
    from txmsg.metaq.tables import TABLE_SCHEMA, read_arrow

__all__ = [
    "SCHEMA",
    "TABLE_SCHEMA",
    "Acks",
    "AsyncPullConsumer",
    "Flush",
    "Log",
    "LogAccess",
    "LogBatch",
    "LogConfig",
    "LogProducer",
    "LogQueue",
    "Member",
    "Permission",
    "Place",
    "PolledBatch",
    "PullConsumer",
    "Strategy",
    "TopicSettings",
    "averaged",
    "open_log",
    "read_arrow",
    "to_arrow",
]

_MODULES = {
    "acks": ("Acks",),
    "location": ("open_log",),
    "consumer.async_pull_consumer": ("AsyncPullConsumer",),
    "consumer.pull_consumer": ("PullConsumer",),
    "consumer.polls": ("PolledBatch",),
    "format.batch": ("SCHEMA", "LogBatch", "to_arrow"),
    "group.assignment": ("Strategy", "averaged"),
    "interface": ("LogAccess", "LogQueue", "Member"),
    "producer": ("LogProducer", "Place"),
    "store.log": ("Log", "LogConfig"),
    "tables": ("TABLE_SCHEMA", "read_arrow"),
    "store.topics": ("Flush", "Permission", "TopicSettings"),
}
_MODULE_OF = {name: f"txmsg.metaq.{module}" for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for an object
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
