"""Consumers of RocketMQ: `python -m tests.chaos.guest_consumer ORDERS`. A push consumer among those of txmsg, and a
simple one. Each notes what its handler did, as consumer.py does.
"""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import count
from typing import Any
from unittest.mock import patch

from rocketmq.v5.consumer import ConsumeResult, MessageListener, PushConsumer, SimpleConsumer
from rocketmq.v5.consumer import consumer as client
from rocketmq.v5.model import FilterExpression, Message

from tests.chaos import business
from tests.chaos.client import orders, quiet_flag
from tests.chaos.guest import configuration, in_threads, started
from tests.chaos.history import DURABILITY, GROUPS_WITH_GUESTS, HELD_BY_GUESTS_S, PULLED, PUSHED
from tests.chaos.journal import Journal

PULLERS = 6
_AWAIT_S = 1
_PULLED_MAX = 16
_LATE_S = 2.0
"""Messages that waited this long for a thread are refused: their lease may have expired."""
_PAUSE_S = 0.2


class Placed(Message):  # type: ignore[misc]  # of a package without types
    """A handle with the message's queue and offset, which are on the wire but not in the client."""

    place: tuple[str, int, int]

    def fromProtobuf(self, message: Any) -> Any:  # noqa: N802 - the client's name
        properties = message.system_properties
        self.place = (message.topic.name, properties.queue_id, properties.queue_offset)
        return super().fromProtobuf(message)


class Notes:
    """The journal of the handlers of one process."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._calls = count(1)

    def got(self, group: str, message: Placed) -> int:
        """Record a delivery and return the number of the call."""
        call = next(self._calls)
        self._journal.write("got", call, group, message.body.decode(), *message.place, message.delivery_attempt)
        return call

    def ended(self, call: int, *, done: bool) -> None:
        self._journal.write("done" if done else "refused", call)


class Handler(MessageListener):  # type: ignore[misc]
    """The handler of the push consumer."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def consume(self, message: Placed) -> ConsumeResult:
        if time.time() - message.decode_message_timestamp / 1000 > _LATE_S:
            return ConsumeResult.FAILURE
        call = self._notes.got(PUSHED, message)
        done = not business.is_failed_by_handler(message.body, message.delivery_attempt, is_first=True)
        self._notes.ended(call, done=done)
        return ConsumeResult.SUCCESS if done else ConsumeResult.FAILURE


def pull(consumer: SimpleConsumer, notes: Notes) -> None:
    """Receive, handle and acknowledge for ever. Messages not handled in time are redelivered."""
    while True:
        began = time.monotonic()
        try:
            messages = consumer.receive(_PULLED_MAX, int(HELD_BY_GUESTS_S)) or ()
        except Exception:  # noqa: BLE001 - of no other type, where there is no route
            time.sleep(_PAUSE_S)
            continue
        for message in messages:
            if time.monotonic() - began > HELD_BY_GUESTS_S / 2:
                break
            notes.ended(notes.got(PULLED, message), done=True)
            with suppress(Exception):  # it raises plain Exceptions; the message is redelivered
                consumer.ack(message)


def main() -> None:
    told = orders()
    quiet_flag()
    notes = Notes(Journal(told.journal_path))
    where, everything = configuration(told.gateway), FilterExpression()
    with patch.object(client, "Message", Placed):
        pushed = dict.fromkeys(DURABILITY, everything)
        started(lambda: PushConsumer(where, PUSHED, Handler(notes), pushed))
        pulled = dict.fromkeys(GROUPS_WITH_GUESTS[PULLED], everything)
        puller = started(lambda: SimpleConsumer(where, PULLED, pulled, await_duration=_AWAIT_S))
        for thread in in_threads(lambda _: pull(puller, notes), PULLERS):
            thread.join()  # until it is killed


if __name__ == "__main__":
    main()
