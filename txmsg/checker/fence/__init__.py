"""The fence: one row per business transaction, in the database of the business, by which a check cannot go wrong.

The transaction inserts the row ('commit') with its effects; so the row is there if and only if the effects are. A check
that finds no row inserts one itself ('rollback'); so a transaction that was late, paused or still to begin fails on the
unique key and can never commit after its message was dropped. A row whose transaction is still running makes the
check wait on its lock, briefly: UNKNOWN, ask again later.

Source of the idea: the barrier row of dtm. Knows SQLAlchemy, and no network.

What the fence cannot see: a check must read the primary (on a replica its INSERT fails, which counts as UNKNOWN); a
business database that loses commits it had reported (an asynchronous failover, or synchronous_commit=off and a crash)
loses fence rows with them; a copy of the business database has the fence id of the original, until
`txmsg fence renew-id` is run in the copy.
"""

from txmsg.checker.fence.check import LOCK_WAIT_S
from txmsg.checker.fence.fence import Fence
from txmsg.checker.fence.fence_async import AsyncFence
from txmsg.checker.fence.listener import FenceCheckListener
from txmsg.checker.fence.purge import PURGE_AGE_S_MIN
from txmsg.checker.fence.store import AsyncFenceStore, FenceStore

__all__ = [
    "LOCK_WAIT_S",
    "PURGE_AGE_S_MIN",
    "AsyncFence",
    "AsyncFenceStore",
    "Fence",
    "FenceCheckListener",
    "FenceStore",
]
