"""A producer of RocketMQ: `python -m tests.chaos.guest_producer ORDERS`. Notes each step, as producer.py does.

Its local transactions are attempts of `business.py`, by which its checker answers, whichever process began them.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from uuid import UUID

from rocketmq.grpc_protocol import TransactionResolution
from rocketmq.v5.model import Message
from rocketmq.v5.producer import Producer, TransactionChecker
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tests.chaos import business
from tests.chaos.client import Orders, orders, quiet_flag
from tests.chaos.guest import configuration, in_threads, started
from tests.chaos.history import DURABILITY, HALF_TOPICS, STORY_TOPIC, TOPICS, SendMethod, Sent, serial_of
from tests.chaos.journal import Journal
from tests.rocketmq.client import message_to
from txmsg import TransactionState

CALLERS = 4
RARE, STORIES = 0.1, 0.1
"""Shares: of messages with the tag, and of operations that are stories."""
COMMIT, ROLLBACK, UNKNOWN = TransactionState
_RESOLUTIONS = {
    COMMIT: TransactionResolution.COMMIT,
    ROLLBACK: TransactionResolution.ROLLBACK,
    UNKNOWN: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


class Checker(TransactionChecker):  # type: ignore[misc]  # of a package without types
    """Answers check-backs from the business database."""

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal

    def check(self, message: Message) -> TransactionResolution:
        serial = serial_of(message.body.decode())
        try:
            with self._engine.begin() as connection:
                state = business.check_attempt(connection, serial)
        except SQLAlchemyError:
            state = UNKNOWN
        self._journal.write("checked", serial, state.value)
        return _RESOLUTIONS[state]


class Caller:
    """One of the calling threads."""

    def __init__(self, told: Orders, journal: Journal, producer: Producer, engine: Engine, number: int) -> None:
        self._name, self._journal, self._producer, self._engine = f"{told.name}.{number}", journal, producer, engine
        self._serials = count(1)
        self._rng = random.Random(f"{told.seed} {told.name} {number}")
        self._pause_s = CALLERS / told.rate_per_s

    def run(self, quiet: threading.Event) -> None:
        """Call until told to stop."""
        ways = ((4, self._send_plain), (1, self._send_delayed), (4, self._transact), (1, self._tell_story))
        while not quiet.is_set():
            self._rng.choices([act for _, act in ways], [weight for weight, _ in ways])[0]()
            quiet.wait(self._rng.uniform(0, 2 * self._pause_s))

    def _send_plain(self) -> None:
        self._note(SendMethod.PLAIN, self._sent(TOPICS), self._send)

    def _send_delayed(self) -> None:
        delay_s = self._rng.uniform(0.2, 3)

        def send(serial: str, message: Message) -> None:
            # In whole seconds from now: by the journal the sending began before.
            message.delivery_timestamp = math.ceil(time.time() + delay_s)
            self._send(serial, message)

        self._note(SendMethod.PLAIN, self._sent(TOPICS)._replace(delay_s=delay_s), send)

    def _tell_story(self) -> None:
        """Send several messages of one message group, each after the call before has returned."""
        key = f"{self._serial()} „Müller“"
        for _ in range(self._rng.randint(3, 6)):
            self._note(SendMethod.PLAIN, Sent(STORY_TOPIC, ordering_key=key), self._send)

    def _transact(self) -> None:
        self._note(SendMethod.CLASSIC, self._sent(HALF_TOPICS), self._play)

    def _serial(self) -> str:
        return f"{self._name}.{next(self._serials)}"

    def _sent(self, topics: tuple[str, ...]) -> Sent:
        return Sent(self._rng.choice(topics), "rare" if self._rng.random() < RARE else "common")

    def _note(self, way: SendMethod, sent: Sent, act: Callable[[str, Message], None]) -> None:
        serial = self._serial()
        message = message_to(sent.topic, f"{serial}/0", keys=(serial,), tag=sent.tag)
        if sent.ordering_key:
            message.message_group = sent.ordering_key
        self._journal.write("begin", serial, way.value, [sent])
        try:
            act(serial, message)
        except Exception as exc:  # noqa: BLE001 - of no other type, where there is no route
            self._journal.write("failed", serial, type(exc).__name__)
        else:
            self._journal.write("returned", serial)

    def _send(self, serial: str, message: Message) -> None:
        self._producer.send(message)
        self._journal.write("stored", serial)

    def _play(self, serial: str, message: Message) -> None:
        """Send half message, local transaction, outcome; sometimes no outcome, or one to be refused or repeated."""
        with self._engine.begin() as connection:
            business.begin_attempt(connection, serial)
        transaction = self._producer.begin_transaction()
        receipt = self._producer.send(message, transaction)
        self._journal.write("half", serial, str(UUID(hex=receipt.transaction_id.removeprefix("01"))))
        state = ROLLBACK if self._rng.random() < 0.2 else COMMIT
        try:
            with self._engine.begin() as connection:
                if not business.finish_attempt(connection, serial, state):
                    state = ROLLBACK
        except SQLAlchemyError:
            return
        if self._rng.random() < 0.3:
            return  # the check finds out
        ends = {COMMIT: transaction.commit, ROLLBACK: transaction.rollback}
        if self._tell(serial, state, ends[state]) and self._rng.random() < 0.2:
            other = self._rng.choice((COMMIT, ROLLBACK))
            self._tell(serial, other, ends[other])

    def _tell(self, serial: str, state: TransactionState, end: Callable[[], object]) -> bool:
        """Return True if the call was answered OK."""
        self._journal.write("tell", serial, state.value)
        reply = "ok"
        try:
            end()
        except Exception as exc:  # noqa: BLE001 - of no other type
            reply = type(exc).__name__
        self._journal.write("told", serial, state.value, reply)
        return reply == "ok"


def main() -> None:
    told = orders()
    quiet = quiet_flag()
    journal = Journal(told.journal_path)
    engine = business.engine_of(told.business_url)
    make = partial(Producer, configuration(told.gateway), tuple(DURABILITY), Checker(engine, journal))
    producer = started(make)
    callers = [Caller(told, journal, producer, engine, number) for number in range(CALLERS)]
    for thread in in_threads(lambda number: callers[number].run(quiet), CALLERS):
        thread.join()
    journal.write("quiet")
    threading.Event().wait()  # it can be asked, until it is killed


if __name__ == "__main__":
    main()
