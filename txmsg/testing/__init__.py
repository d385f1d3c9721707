"""A pytest plugin for applications that use txmsg: a real broker per test, a clock to advance, faults to inject.

pytest finds it when txmsg is installed; it loads nothing before a fixture is used. The fixtures are
`txmsg_broker`, `txmsg_clock`, `txmsg_producer`, `txmsg_consumer`, `txmsg_async_producer`, `txmsg_async_consumer`,
`txmsg_app`, `txmsg_memory` and `txmsg_address`: docs/how-to/testing.md.

plugin         the fixtures and the option --txmsg-storage
database       the Notify database of a run, emptied for each test
host           a process that runs one broker after the other
broker         the broker of a test
applications   runs an application at the broker, or calls its handlers without one
calling_thread   runs handlers on the thread of the test
memory         messages sent to "memory:", and their delivery without a broker
progress       remaining work of groups, for messages of failed tests
log_progress   the same for groups that read a log
clock          advances time for waiting messages
faults         injects faults
fences         the contract of a FenceStore, as a class of tests
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from txmsg.testing.applications import AppRun, handle, handle_async
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
    from txmsg.testing.fences import FenceStoreContract
    from txmsg.testing.memory import Memory
    from txmsg.testing.plugin import MakeAsyncConsumer, MakeAsyncProducer, MakeConsumer, MakeProducer, RunApp

__all__ = [
    "AppRun",
    "Broker",
    "Clock",
    "FenceStoreContract",
    "MakeAsyncConsumer",
    "MakeAsyncProducer",
    "MakeConsumer",
    "MakeProducer",
    "Memory",
    "ProcessDied",
    "RunApp",
    "broker_away",
    "dies_after_commit",
    "dies_before_commit",
    "handle",
    "handle_async",
    "handler_fails",
    "lost_reply",
]

_MODULE_OF = dict.fromkeys(__all__, "txmsg.testing.faults") | {
    "AppRun": "txmsg.testing.applications",
    "Broker": "txmsg.testing.broker",
    "Clock": "txmsg.testing.clock",
    "FenceStoreContract": "txmsg.testing.fences",
    "MakeAsyncConsumer": "txmsg.testing.plugin",
    "MakeAsyncProducer": "txmsg.testing.plugin",
    "MakeConsumer": "txmsg.testing.plugin",
    "MakeProducer": "txmsg.testing.plugin",
    "Memory": "txmsg.testing.memory",
    "RunApp": "txmsg.testing.plugin",
    "handle": "txmsg.testing.applications",
    "handle_async": "txmsg.testing.applications",
}

if not TYPE_CHECKING:  # as in txmsg/__init__.py: a run of pytest that uses no fixture loads no protobuf
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
