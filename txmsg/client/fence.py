"""The fence by itself: for its upkeep, beside transactions that the application commits, and in stores of its own.

A producer with a `FenceCheckListener` needs none of this. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from txmsg.checker.fence import AsyncFence, AsyncFenceStore, Fence, FenceStore
    from txmsg.client.flows.undecided import held_by, held_by_async
    from txmsg.client.receiving.inbox import purge_inbox

__all__ = [
    "AsyncFence",
    "AsyncFenceStore",
    "Fence",
    "FenceStore",
    "held_by",
    "held_by_async",
    "purge_inbox",
]

_MODULES = {
    "txmsg.checker.fence": ("AsyncFence", "AsyncFenceStore", "Fence", "FenceStore"),
    "txmsg.client.flows.undecided": ("held_by", "held_by_async"),
    "txmsg.client.receiving.inbox": ("purge_inbox",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for an object
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
