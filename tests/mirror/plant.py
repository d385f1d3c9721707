"""Planted defects of a mirror into Kafka: tests must find each, or they prove nothing. The product has none.

Each is a step of the argument (docs/decisions, "A mirror in Kafka ...") that is left out.

    python -m tests.mirror.plant NAME tailer run ...    `txmsg tailer run ...`, with the defect
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.transactions import TransactionalWriter
from txmsg.ops.cli.main import main


@contextmanager
def _ends_are_of_what_is_not_committed() -> Iterator[None]:
    """A queue continues after records of an aborted transaction: these are lost."""

    def consumer(self: KafkaClients, group: str, **more: Any) -> Consumer:
        return original(self, group, **more, isolation_level="read_uncommitted")

    original = KafkaClients.consumer
    with patch.object(KafkaClients, "consumer", consumer):
        yield


class _Around:
    """A producer, except for the methods overridden by a subclass."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


@contextmanager
def _producers_are(changed: Callable[..., Producer | _Around]) -> Iterator[None]:
    def producer(self: KafkaClients, **more: Any) -> Producer | _Around:
        return changed(partial(original, self), **more)

    original = KafkaClients.producer
    with patch.object(KafkaClients, "producer", producer):
        yield


class _FencesLate(_Around):
    """A producer that fences others only at its first transaction."""

    _timeout_s: float | None = None

    def init_transactions(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def begin_transaction(self) -> None:
        if self._timeout_s is not None:
            self._producer.init_transactions(self._timeout_s)
            self._timeout_s = None
        self._producer.begin_transaction()


def _ends_are_read_before_others_are_fenced() -> AbstractContextManager[None]:
    """Messages committed meanwhile by another tailer are written again."""
    return _producers_are(lambda made, **more: _FencesLate(made(**more)))


def _writers_do_not_share_a_name() -> AbstractContextManager[None]:
    """No tailer is fenced: messages that a paused one commits when it wakes are written twice."""
    return _producers_are(lambda made, **more: made(**{**more, "transactional_id": str(uuid4())}))


class _NotesAtOnce(_Around):
    """A producer that stores offsets outside the transaction."""

    def __init__(self, producer: Producer, notes: Consumer) -> None:
        super().__init__(producer)
        self._notes = notes

    def send_offsets_to_transaction(self, offsets: Sequence[TopicPartition], *_: object) -> None:
        self._notes.commit(offsets=list(offsets), asynchronous=False)


@contextmanager
def _notes_are_not_in_the_transaction() -> Iterator[None]:
    """The stored offsets include aborted records, so their queues stop, as if Kafka had lost records."""

    def init(self: TransactionalWriter, *values: Any) -> None:
        original(self, *values)
        vars(self)["_producer"] = _NotesAtOnce(self._producer, self._notes)

    original = TransactionalWriter.__init__
    with patch.object(TransactionalWriter, "__init__", init):
        yield


PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "unfenced": _ends_are_read_before_others_are_fenced,
    "nameless": _writers_do_not_share_a_name,
    "uncommitted": _ends_are_of_what_is_not_committed,
    "notes": _notes_are_not_in_the_transaction,
}


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    with PLANTS[name]():
        main(arguments)
