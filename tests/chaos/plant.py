"""Planted defects: the checker must find each, or it proves nothing. The product has no such flags.

Most are those of tests/model, where each is told as the mistake that a person could make.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg
from psycopg import AsyncConnection
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from tests.chaos.judge import CHAIN, LIVE
from tests.model import plant as model
from tests.model.model import Defect
from txmsg.broker.cluster.clock import Heartbeats
from txmsg.broker.delivery.keys import OrderingKeys
from txmsg.broker.delivery.window import InFlightWindow, WindowProgress
from txmsg.broker.store import batch, connect, retries
from txmsg.broker.store.rows import Generations
from txmsg.broker.waits import Waits
from txmsg.checker.fence.own_rows import own_connection
from txmsg.checker.tables import inbox_table
from txmsg.client import AsyncProducer
from txmsg.client.flows.flow import LocalTransaction
from txmsg.client.flows.flow_async import AsyncLocalTransaction
from txmsg.client.flows.guard import SessionGuard
from txmsg.client.flows.late import LateTransaction
from txmsg.client.flows.late_async import AsyncLateTransaction
from txmsg.client.flows.sent import SentMessages
from txmsg.client.outbox import rows
from txmsg.client.outbox.circuit_breaker import CircuitBreaker
from txmsg.client.receiving import inbox, sending_handler, sending_handler_async
from txmsg.client.sending.batch import RequestEntry
from txmsg.client.sending.sender import RequestLane
from txmsg.client.sending.thread_lane import FailedRequest
from txmsg.message import TransactionId, TransactionState, new_transaction_id
from txmsg.rocketmq.receivers import ClientSubscription, Received, Receivers
from txmsg.rocketmq.senders import Senders

_AFTER_COMMIT_S = 0.02


@dataclass(frozen=True, slots=True)
class Plant:
    """A defect, and the invariants of which at least one must be reported as violated."""

    kind: str
    invariants: frozenset[str]
    of_model: model.Plant
    statements: tuple[str, ...] = ()
    """SQL that runs once beside it."""
    needs_away: bool = False
    """True if only a run with all brokers down for some time reveals it."""
    needs_guests: bool = False
    """True if only RocketMQ clients reveal it."""
    stands: bool = False
    """True if it makes something wait for ever: such a run needs the full patience."""

    @property
    def name(self) -> str:
        return self.of_model.name

    def install(self, url: str) -> None:
        """Replace functions of a database."""
        self.of_model.install(url)
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in self.statements:
                connection.execute(statement.encode())


@contextmanager
def _cursor_of_what_was_given() -> Iterator[None]:
    """Only a takeover reveals it."""

    def progress(self: InFlightWindow) -> WindowProgress:
        return WindowProgress(self.position, (), original(self).version)

    original = InFlightWindow.progress
    with patch.object(InFlightWindow, "progress", progress):
        yield


@contextmanager
def _keys_all_at_once() -> Iterator[None]:
    with patch.object(OrderingKeys, "admit", lambda self, rows: (list(rows), [])):
        yield


@contextmanager
def _one_copy_is_enough() -> Iterator[None]:
    """Commits are believed after PostgreSQL has stopped waiting for standbys."""

    async def await_standbys(*values: object, **options: object) -> None:
        return None

    with patch.object(batch, "await_standbys", await_standbys):
        yield


@contextmanager
def _generation_of_the_cursor() -> Iterator[None]:
    """All messages of a queue are delivered under the last generation requested in it."""

    def at(self: Generations, offset: int) -> int:
        return max((original(self, start) for start in self.starts), default=0)

    original = Generations.at
    with patch.object(Generations, "at", at):
        yield


@contextmanager
def _threads_take_silence_for_stored() -> Iterator[None]:
    """Threaded producers take a missing reply for success: the request is not left to the loop, which repeats it."""

    def attempt(
        self: RequestLane[RequestEntry], entries: list[RequestEntry], until: float
    ) -> FailedRequest[RequestEntry] | None:
        failed = original(self, entries, until)
        if failed is None or self._kind.name == "half":
            return failed
        for entry in failed.entries:
            entry.succeed(b"")
        return None

    original = RequestLane._attempt_by_thread
    with patch.object(RequestLane, "_attempt_by_thread", attempt):
        yield


@contextmanager
def _outbox_is_not_looked_at() -> Iterator[None]:
    """A call overtakes one with the same key in the outbox. Each call tries: few would before all is relayed."""
    with patch.object(rows, "has_key", lambda *_: False), patch.object(CircuitBreaker, "may_try", lambda *_: True):
        yield


@contextmanager
def _relayed_under_another_id() -> Iterator[None]:
    """The fence row belongs to another transaction than the half messages, so check-backs never see the commit."""

    def finish(connection: Connection, fence_id: UUID, relayed: Mapping[int, TransactionId]) -> bool:
        return original(connection, fence_id, {seq: new_transaction_id() for seq in relayed})

    original = rows.finish
    with (
        patch.object(rows, "finish", finish),
        patch.object(AsyncProducer, "_end_soon", lambda self, half, _: self._tell_soon(half, TransactionState.UNKNOWN)),
    ):
        yield


@contextmanager
def _ends_are_answered_first() -> Iterator[None]:
    """A gateway answers the end of a transaction and drops it: only a later check-back finds the outcome."""

    async def end(self: Senders, topic: str, transaction_id: bytes, state: TransactionState) -> None:
        return None

    with patch.object(Senders, "end_transaction", end):
        yield


@contextmanager
def _acknowledged_when_given() -> Iterator[None]:
    """A gateway acknowledges messages when it sends them to a client, before the client has handled them."""

    async def receive(self: Receivers, member: ClientSubscription, broker: str, *args: Any, **options: Any) -> Received:
        received = await original(self, member, broker, *args, **options)
        await self.acknowledge(member, [handle for _, handle in received.messages])
        return received

    original = Receivers.receive
    with patch.object(Receivers, "receive", receive):
        yield


@contextmanager
def _keys_stay_blocked() -> Iterator[None]:
    """A failure blocks its ordering key for ever."""

    async def free_keys(*values: object) -> retries.FreedKeys:
        return retries.FreedKeys([], [])

    with patch.object(retries, "free_keys", free_keys):
        yield


@contextmanager
def _waits_stay_as_they_are() -> Iterator[None]:
    """Messages due soon by a clock that was ahead stay scheduled by it after the clock is corrected."""

    async def renew_once(self: Waits) -> None:
        return None

    with patch.object(Waits, "renew_once", renew_once):
        yield


@contextmanager
def _heartbeats_are_believed() -> Iterator[None]:
    """A dead broker counts as alive for as long as its row says by the database's clock."""
    with patch.object(Heartbeats, "silent", lambda *_: {}):
        yield


@contextmanager
def _commits_are_not_flushed() -> Iterator[None]:
    """PostgreSQL tells a broker of a commit before it is on disk."""

    async def set_(connection: AsyncConnection[Any], settings: Mapping[str, str]) -> None:
        await original(connection, {**settings, "synchronous_commit": "off"})

    original = connect._set
    with patch.object(connect, "_set", set_):
        yield


def _of_model(name: str) -> model.Plant:
    return next(plant for plant in model.PLANTS if plant.name == name)


@contextmanager
def _inbox_row_apart() -> Iterator[None]:
    """A service commits the inbox row of a message before everything else."""

    def record(session: Session, guard: SessionGuard, row: dict[str, object]) -> bool:
        with own_connection(session, inbox_table).engine.begin() as connection:
            return inbox._write(connection, row)

    with patch.object(sending_handler, "record", record), patch.object(sending_handler_async, "record", record):
        yield


@contextmanager
def _sent_after_the_commit() -> Iterator[None]:
    """Messages of a transaction are sent only after it has committed and other work was done."""

    def commit(self: LateTransaction) -> None:
        messages, self._sent = self._sent.messages(), SentMessages()
        original(self)
        time.sleep(_AFTER_COMMIT_S)
        for message in messages:
            self._producer.send(message)  # type: ignore[attr-defined]  # it is a Producer

    async def commit_async(self: AsyncLateTransaction) -> None:
        messages, self._sent = self._sent.messages(), SentMessages()
        await original_async(self)
        await asyncio.sleep(_AFTER_COMMIT_S)
        for message in messages:
            await self._producer.send(message)  # type: ignore[attr-defined]  # it is an AsyncProducer

    original, original_async = LateTransaction._commit, AsyncLateTransaction._commit
    with patch.object(LateTransaction, "_commit", commit), patch.object(AsyncLateTransaction, "_commit", commit_async):
        yield


@contextmanager
def _committed_before_the_half() -> Iterator[None]:
    """A transaction with an alongside half message commits first and waits for the half message afterwards."""

    def run(self: LocalTransaction, factory: Any, work: Any) -> Any:
        stored, self._before_commit = self._before_commit, None
        result = original(self, factory, work)
        if stored is not None:
            stored()
        return result

    async def run_async(self: AsyncLocalTransaction, factory: Any, work: Any) -> Any:
        stored, self._before_commit = self._before_commit, None
        result = await original_async(self, factory, work)
        if stored is not None:
            await stored()
        return result

    original, original_async = LocalTransaction.run, AsyncLocalTransaction.run
    with patch.object(LocalTransaction, "run", run), patch.object(AsyncLocalTransaction, "run", run_async):
        yield


PLANTS = (
    Plant("lost", frozenset({"I1", "I2"}), _of_model("only the first message of a transaction is committed")),
    Plant("lost", frozenset({"I1", "I2"}), _of_model("a broken connection is taken for written")),
    Plant("lost", frozenset({"I1", "I2"}), _of_model("answered before it is written")),
    Plant(
        "lost",
        frozenset({"I3"}),
        model.Plant("cursors say what was given, not what was done", Defect.LOST, code=_cursor_of_what_was_given),
    ),
    Plant(
        "threads",
        frozenset({"I1", "I2"}),
        model.Plant("threads take silence for stored", Defect.LOST, code=_threads_take_silence_for_stored),
    ),
    Plant(
        "early",
        frozenset({"I1", "I2"}),
        model.Plant("a commit does not wait for its half message", Defect.LOST, code=_committed_before_the_half),
    ),
    Plant(
        "unflushed",
        frozenset({"I1", "I2"}),
        model.Plant("a broker answers before the flush", Defect.LOST, code=_commits_are_not_flushed),
    ),
    Plant(
        "stale",
        frozenset({"I2", "I3", "I8"}),
        _of_model("a broker goes on with what it read before the database went back"),
    ),
    Plant(
        "copies",
        frozenset({"I1", "I2"}),
        model.Plant("replicated is what PostgreSQL says it is", Defect.LOST, code=_one_copy_is_enough),
    ),
    Plant(
        "again",
        frozenset({"I3"}),
        model.Plant("a plain seek keeps the generation", Defect.DUPLICATED, code=_generation_of_the_cursor),
    ),
    Plant(
        "dup",
        frozenset({"I4"}),
        model.Plant(
            "repeats of plain messages are not looked up",
            Defect.DUPLICATED,
            (
                (
                    "apply_batch",
                    "m.segment in (p_segment, p_previous, v_memory_open, v_memory_previous)\n"
                    "                   and m.transaction_id = any(p_plain_id)",
                    "false and m.transaction_id = any(p_plain_id)",
                ),
            ),
        ),
        ("alter table txmsg.message drop constraint message_once_in_segment",),
    ),
    Plant("reorder", frozenset({"I4", "I5"}), _of_model("a batch places messages from the youngest to the oldest")),
    Plant(
        "reorder",
        frozenset({"I5"}),
        model.Plant("messages of a key are given without waiting", Defect.REORDERED, code=_keys_all_at_once),
    ),
    Plant("phantom", frozenset({"I1"}), _of_model("a check answered UNKNOWN commits")),
    Plant("phantom", frozenset({"I1"}), _of_model("UNKNOWN delivers")),
    Plant("gap", frozenset({"I4"}), _of_model("offsets are counted over all queues of a batch")),
    Plant("late", frozenset({"I6"}), _of_model("a rollback after the commit is answered OK")),
    Plant("late", frozenset({"I6"}), _of_model("a rollback is not remembered")),
    Plant(
        "relay",
        frozenset({"I1"}),
        model.Plant("the outbox is relayed under another id", Defect.LOST, code=_relayed_under_another_id),
        needs_away=True,
    ),
    Plant(
        "overtake",
        frozenset({"I5"}),
        model.Plant("the outbox is not looked at", Defect.REORDERED, code=_outbox_is_not_looked_at),
        needs_away=True,
    ),
    Plant(
        "blocked",
        frozenset({LIVE}),
        model.Plant("a key that has failed once stays blocked", Defect.LOST, code=_keys_stay_blocked),
        stands=True,
    ),
    Plant(
        "clock",
        frozenset({LIVE}),
        model.Plant("waits are not renewed when the clock is set back", Defect.LOST, code=_waits_stay_as_they_are),
        stands=True,
    ),
    Plant(
        "heartbeats",
        frozenset({LIVE}),
        model.Plant("the times of heartbeats are believed", Defect.LOST, code=_heartbeats_are_believed),
        stands=True,
    ),
    Plant(
        "inbox",
        frozenset({CHAIN}),
        model.Plant("the inbox row is in a transaction of its own", Defect.LOST, code=_inbox_row_apart),
    ),
    Plant(
        "outside",
        frozenset({CHAIN}),
        model.Plant("a handler's messages are sent after its commit", Defect.LOST, code=_sent_after_the_commit),
    ),
    Plant(
        "unended",
        frozenset({"I4", "I6"}),
        model.Plant("a gateway answers an end before the broker has it", Defect.LOST, code=_ends_are_answered_first),
        needs_guests=True,
    ),
    Plant(
        "hasty",
        frozenset({"I3", "I5"}),
        model.Plant("a gateway acknowledges what it gives", Defect.REORDERED, code=_acknowledged_when_given),
        needs_guests=True,
    ),
)
"""One or more for each kind; the kind's name stands for the first."""


def chosen(name: str) -> Plant:
    """Return the first plant of a kind ("lost"), or the one with this name."""
    for each in PLANTS:
        if name in (each.kind, each.name):
            return each
    kinds = ", ".join(dict.fromkeys(plant.kind for plant in PLANTS))
    raise ValueError(f"no planted defect is called {name!r}: say one of {kinds}, or a name of tests/chaos/plant.py")


def planted(name: str) -> AbstractContextManager[None]:
    """Install the Python part of a defect in a broker or producer process. No name: nothing."""
    return chosen(name).of_model.code() if name else nullcontext()
