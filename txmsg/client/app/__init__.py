"""Applications: handlers declared in one place, with what they depend on, and run together. Built on consumers.

application    `Txmsg`: the subscriptions, producers and hooks of a process, started and stopped together
database       the database of its transactions: sessions, answers to checks, tables
transactions   handlers that run in one transaction: message, effects, sent messages
returned       messages that a handler returns or yields, sent with its transaction
router         `Router`: subscriptions of a module, to be included in an application
dependencies   the parameters of handlers, and the sources of their values
receiving      the consumers of its subscriptions, of brokers and of the log
handling       a subscription as the handler of a consumer: middleware, rate, batches, processes
batches        messages that are handled together
middleware     around handlers of such lists
processes      handlers in processes of their own
producers      its producers: made before it runs or while it does, started and closed with it
sending        the steps of messages on their way out
hooks          contexts that are entered at the start and exited at the end
described      the messages that it sends and receives, for its AsyncAPI document
loading        an application by its name, MODULE:NAME
worker         processes that run an application, and the one that supervises them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from txmsg.client.app.application import Txmsg
    from txmsg.client.app.dependencies import Depends
    from txmsg.client.app.router import Router

__all__ = ["Depends", "Router", "Txmsg"]

_MODULE_OF = {
    "Depends": "txmsg.client.app.dependencies",
    "Router": "txmsg.client.app.router",
    "Txmsg": "txmsg.client.app.application",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
