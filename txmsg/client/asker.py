"""Asks the application's check listener for the outcome of a transaction, and always answers in time.

Knows no brokers. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from txmsg.checker.listener import CheckMessageListener
from txmsg.client.running import is_running
from txmsg.errors import shown
from txmsg.message import ReceivedMessage, TransactionId, TransactionState
from txmsg.runtime.logs import EventLog
from txmsg.runtime.threads import DaemonThreads
from txmsg.runtime.user_function import UserFunction

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption

_log = EventLog(__name__)

LISTENER_TIMEOUT_S = 10.0
"""Seconds that a listener may take. A broker waits as long by default, and checks back again after its check
interval."""


class Asker:
    """A check listener, and the threads on which it is called.

    Raising, hanging, and anything that is not a TransactionState count as UNKNOWN. A thread cannot be ended from
    outside, so a transaction whose check hangs is not asked about again meanwhile, and blocks only one thread.
    """

    def __init__(
        self,
        listener: CheckMessageListener,
        *,
        threads: int,
        timeout_s: float = LISTENER_TIMEOUT_S,
        encryption: Encryption | None = None,
    ) -> None:
        self._listener = listener
        self._timeout_s = timeout_s
        self._thread_count = threads
        self._threads = DaemonThreads(threads, name="txmsg-check")
        # A coroutine function holds no thread: it is cancelled when its time is over.
        function = listener.check if inspect.iscoroutinefunction(listener.check) else self._on_thread
        # A body that cannot be decrypted must not leave a transaction in doubt that can be decided without it.
        decrypt = encryption.decrypt if encryption is not None and getattr(listener, "reads_bodies", True) else None
        self._function = UserFunction("check_listener's", function, "message", convert=decrypt)
        self._running: set[TransactionId] = set()

    async def ask_listener(self, message: ReceivedMessage) -> TransactionState:
        """Return the listener's answer, or UNKNOWN."""
        transaction_id = message.transaction_id
        # The effects of a transaction that this process still runs are not visible yet: a listener would answer
        # ROLLBACK for it.
        if is_running(message.id_bytes):
            _log.debug(
                "listener.running",
                "check of transaction %(transaction_id)s: this process is running it: UNKNOWN",
                transaction_id=transaction_id,
            )
            return TransactionState.UNKNOWN
        if transaction_id in self._running:
            _log.error(
                "listener.hangs",
                "check of transaction %(transaction_id)s: the listener still hangs in an earlier one: UNKNOWN",
                transaction_id=transaction_id,
            )
            return TransactionState.UNKNOWN
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                state: object = await self._function(message, self._threads)
        except Exception as exc:  # noqa: BLE001 - the user's code: whatever it raises is no answer
            if isinstance(exc, TimeoutError) and limit.expired():
                _log.error(
                    "listener.timed_out",
                    "check of transaction %(transaction_id)s: the listener gave no answer within %(timeout_s)g s: "
                    "UNKNOWN; calls that hang hold %(hanging)d of %(threads)d threads",
                    transaction_id=transaction_id,
                    timeout_s=self._timeout_s,
                    hanging=len(self._running),
                    threads=self._thread_count,
                )
            else:
                _log.exception(
                    "listener.raised",
                    "check of transaction %(transaction_id)s: the listener raised: UNKNOWN",
                    transaction_id=transaction_id,
                )
            return TransactionState.UNKNOWN
        if not isinstance(state, TransactionState):
            _log.error(
                "listener.wrong_answer",
                "check of transaction %(transaction_id)s: the listener returned %(answer)s: UNKNOWN; it is to return "
                "TransactionState.COMMIT, ROLLBACK or UNKNOWN",
                transaction_id=transaction_id,
                answer=shown(state),
            )
            return TransactionState.UNKNOWN
        return state

    def close(self) -> None:
        """Ask no more. Calls that hang are not waited for."""
        self._threads.shutdown()

    def _on_thread(self, message: ReceivedMessage) -> Any:
        self._running.add(message.transaction_id)
        try:
            return self._listener.check(message)
        finally:
            self._running.discard(message.transaction_id)
