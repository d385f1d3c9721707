"""A pytest plugin for applications that use txmsg: a real broker per test, a clock to move, failures to inject.

pytest finds it by itself when txmsg is installed; it loads nothing before a fixture is asked for. The fixtures are
`txmsg_broker`, `txmsg_clock`, `txmsg_producer`, `txmsg_consumer` and `txmsg_address`: docs/how-to/testing.md.

plugin      the fixtures and the option --txmsg-storage
database    the Notify database of a run, emptied for each test
host        a process that runs one broker after the other
broker      the broker of a test as the test sees it
progress    what a group still has to do, and how that is said
clock       moves what waits for a time
faults      what goes wrong on request
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txmsg.testing.broker import Broker
    from txmsg.testing.clock import Clock
    from txmsg.testing.faults import (
        ProcessDied,
        broker_away,
        dies_after_commit,
        dies_before_commit,
        handler_fails,
        lost_reply,
    )
    from txmsg.testing.plugin import MakeConsumer, MakeProducer

__all__ = [
    "Broker",
    "Clock",
    "MakeConsumer",
    "MakeProducer",
    "ProcessDied",
    "broker_away",
    "dies_after_commit",
    "dies_before_commit",
    "handler_fails",
    "lost_reply",
]

_MODULE_OF = {
    "Broker": "broker",
    "Clock": "clock",
    "MakeConsumer": "plugin",
    "MakeProducer": "plugin",
}

if not TYPE_CHECKING:  # as in txmsg/__init__.py: a run of pytest that uses no fixture loads no gRPC

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'txmsg.testing' has no attribute {name!r}")
        value: object = getattr(import_module(f"txmsg.testing.{_MODULE_OF.get(name, 'faults')}"), name)
        globals()[name] = value
        return value
