"""MetaQ: an ordered log of many queues, usable with no broker, no PostgreSQL and no gRPC.

frame       batches of messages as bytes                     (pure)
batch       what is read, as Arrow or as messages            (pure)
messages    applications' messages as columns                (pure)
commit_log  files of frames
cells       consume queues: a cell per frame
queues      consume queues as the writer has them
keys        hashes of keys, by which messages are found
finding     indexes of keys: made, and looked up
state       small files: which log it is, its checkpoint
topics      what each topic asks for
recovery    what to do with what a crash has left
retention   which files need not be kept
reader      reads queues, in any process
log         the one writer
placing     frames where they are to stand, before they are written
lock        which process that is
opening     what that does with what it finds
access      how a log is used, the same for a path and an address
local       a log in a directory, as `access` has it
waiting     waits for a log to grow
assignment  which member of a group owns which queue         (pure)
groups      members, the queues they own and their offsets, by the locks of group_files
group_logs  the small logs of groups: retries and dead letters
retries     messages that failed, as they stand there        (pure)
lane        what a consumer has of one queue that it owns    (pure)
balancing   which queues a consumer owns
fetching    what it fetches, and goes past
handling, working    its handlers; polling, without them
consumer, async_consumer, producer    what users make

docs/log_format.md names every byte. Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txmsg.metaq.access import LogAccess, Member, QueueId, open_log
    from txmsg.metaq.assignment import Strategy, averaged
    from txmsg.metaq.async_consumer import AsyncLogConsumer
    from txmsg.metaq.batch import SCHEMA, LogBatch
    from txmsg.metaq.consumer import LogConsumer
    from txmsg.metaq.log import Log, LogConfig
    from txmsg.metaq.polling import PolledBatch
    from txmsg.metaq.producer import LogProducer, Place
    from txmsg.metaq.topics import Flush, TopicSettings

__all__ = [
    "SCHEMA",
    "AsyncLogConsumer",
    "Flush",
    "Log",
    "LogAccess",
    "LogBatch",
    "LogConfig",
    "LogConsumer",
    "LogProducer",
    "Member",
    "Place",
    "PolledBatch",
    "QueueId",
    "Strategy",
    "TopicSettings",
    "averaged",
    "open_log",
]

_MODULES = {
    "access": ("LogAccess", "Member", "QueueId", "open_log"),
    "assignment": ("Strategy", "averaged"),
    "async_consumer": ("AsyncLogConsumer",),
    "batch": ("SCHEMA", "LogBatch"),
    "consumer": ("LogConsumer",),
    "log": ("Log", "LogConfig"),
    "polling": ("PolledBatch",),
    "producer": ("LogProducer", "Place"),
    "topics": ("Flush", "TopicSettings"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for an object

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'txmsg.metaq' has no attribute {name!r}")
        value: object = getattr(import_module(f"txmsg.metaq.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
