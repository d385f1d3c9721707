"""The presence of a client at the brokers: says who it is, learns who they are, and answers their check-backs.

One stream per broker, opened again when it breaks. Knows no sessions and sends no messages. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING

from txmsg.checker.listener import CheckMessageListener
from txmsg.client.asker import Asker
from txmsg.client.channel import Brokers
from txmsg.client.receiving.received import checked
from txmsg.errors import PermissionDenied, TxmsgError, Unauthenticated
from txmsg.message import TransactionState
from txmsg.runtime.logs import EventLog
from txmsg.wire.channel import ClientStream
from txmsg.wire.v1.txmsg_pb2 import BrokerFrame, Check, CheckAnswer, ClientFrame, Hello
from txmsg.wire.v1.txmsg_rpc import Notify

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption
    from txmsg.tracing import Tracing

_log = EventLog(__name__)

RECONNECT_PAUSE_S_MAX = 1.0
REFUSED_PAUSE_S = 5.0
CONNECT_S_MAX = 5.0
CHECKS_MAX = 16
"""Check-backs that run at once; further ones wait."""
ANSWERS_PENDING_MAX = 1000

_WIRE_STATES = {
    TransactionState.COMMIT: CheckAnswer.COMMIT,
    TransactionState.ROLLBACK: CheckAnswer.ROLLBACK,
    TransactionState.UNKNOWN: CheckAnswer.UNKNOWN,
}


class AttachedStreams:
    """Keeps a stream open to every known broker. `run` ends only when it is cancelled.

    listener: answers check-backs; without one none are asked. tracing: traces the answers. encryption: decrypts
    the messages that it is shown.
    """

    def __init__(
        self,
        brokers: Brokers,
        *,
        client_id: str,
        group: str = "",
        consumer_group: str = "",
        fence_id: bytes = b"",
        listener: CheckMessageListener | None = None,
        tracing: Tracing | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        self._brokers = brokers
        self._group = group
        self._told_group = group or consumer_group or "(none)"
        self._tracing = tracing
        self._hello = Hello(
            client_id=client_id,
            producer_group=group,
            fence_ids=[fence_id] if fence_id else [],
            checks_unfenced=listener is not None and not fence_id,
            consumer_group=consumer_group,
            host=socket.gethostname(),
            pid=os.getpid(),
            release=version("txmsg"),
        )
        self.attached_to: set[str] = set()
        """Addresses of the brokers to which a stream is open now."""
        # A broker that comes back may check thousands of transactions at once; the listener's database must not get as
        # many connections.
        self._slots = asyncio.Semaphore(CHECKS_MAX)
        self._asker = None if listener is None else Asker(listener, threads=CHECKS_MAX, encryption=encryption)

    async def run(self) -> None:
        """Attach to every broker and stay attached, also to those that come later."""
        changed = asyncio.Event()
        self._brokers.watch(changed.set)
        streams: dict[str, asyncio.Task[None]] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    changed.clear()
                    known = set(self._brokers.addresses)
                    for address in streams.keys() - known:
                        streams.pop(address).cancel()
                    for address in known - streams.keys():
                        streams[address] = tasks.create_task(self._stay_attached(address))
                    await changed.wait()
        finally:
            self._brokers.unwatch(changed.set)
            if self._asker is not None:
                self._asker.close()

    async def _stay_attached(self, address: str) -> None:
        """Attach, and again whenever the stream ends. Logs the begin and the end of an outage once each."""
        told: type[TxmsgError] | None = None

        def attached() -> None:
            nonlocal told
            told = None
            self.attached_to.add(address)
            _log.info(
                "attach.attached",
                "group %(group)s is attached to broker %(broker)s",
                broker=address,
                group=self._told_group,
            )

        while True:
            try:
                await self._attach(address, attached)
                _log.info(
                    "attach.ended",
                    "broker %(broker)s ended the attach stream of group %(group)s",
                    broker=address,
                    group=self._told_group,
                )
            except (Unauthenticated, PermissionDenied) as exc:
                if told is not type(exc):
                    _log.error("attach.refused", "broker %(broker)s refuses: %(error)s", broker=address, error=exc)
                told = type(exc)
                await asyncio.sleep(REFUSED_PAUSE_S)  # an operator has to act, and each login that fails is noted
            except TxmsgError as exc:
                if told is not type(exc):
                    _log.info(
                        "attach.failed",
                        "group %(group)s is not attached to broker %(broker)s: %(error)s; check-backs come through "
                        "others",
                        group=self._told_group,
                        broker=address,
                        error=exc,
                    )
                told = type(exc)
            except Exception:  # noqa: BLE001 - a task's root
                _log.exception(
                    "attach.broken", "the attach stream to broker %(broker)s failed unexpectedly", broker=address
                )
            await asyncio.sleep(random.uniform(0.1, RECONNECT_PAUSE_S_MAX))

    async def _attach(self, address: str, attached: Callable[[], None]) -> None:
        answers: asyncio.Queue[CheckAnswer] = asyncio.Queue(ANSWERS_PENDING_MAX)
        first = ClientFrame(hello=self._hello)
        stream = await self._brokers.channel(address).stream(Notify.attach, first, timeout_s=CONNECT_S_MAX)
        try:
            async with asyncio.TaskGroup() as tasks:
                telling = tasks.create_task(self._send_answers(stream, answers))
                is_attached = False
                while (frame := await stream.receive()) is not None:
                    if not is_attached:
                        is_attached = True
                        attached()
                    if frame.HasField("route_changed"):
                        self._brokers.learn(address, frame.route_changed)
                    # A check that is dropped here is asked again after its interval; an unbounded queue of answers to a
                    # broker that does not read would grow.
                    elif frame.HasField("check") and self._asker is not None and not answers.full():
                        tasks.create_task(self._answer(self._asker, frame.check, answers))
                telling.cancel()
        except BaseExceptionGroup as group:  # of one: nothing in the tasks raises
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # while the group ended by an error, which it tells instead
                raise asyncio.CancelledError from None
            raise group.exceptions[0] from None
        finally:
            self.attached_to.discard(address)
            stream.close()

    async def _send_answers(
        self, stream: ClientStream[ClientFrame, BrokerFrame], answers: asyncio.Queue[CheckAnswer]
    ) -> None:
        while True:
            await stream.send_request(ClientFrame(check_answer=await answers.get()))

    async def _answer(self, asker: Asker, check: Check, answers: asyncio.Queue[CheckAnswer]) -> None:
        async with self._slots:
            message = checked(check)
            tracing = self._tracing
            with nullcontext() if tracing is None else tracing.answering(self._group, message, check.trace) as span:
                state = await asker.ask_listener(message)
                if span is not None:
                    span.answered(state)
        _log.info(
            "check.answered",
            "check %(attempt)d of transaction %(transaction_id)s: %(answer)s",
            attempt=check.attempt,
            transaction_id=message.transaction_id,
            answer=state.name,
        )
        answer = CheckAnswer(transaction_id=check.transaction_id, state=_WIRE_STATES[state])
        await answers.put(answer)
