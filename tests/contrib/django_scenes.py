"""Runs in the documented project: transactions of each kind. Exits without cleanup where it is told to die."""

from __future__ import annotations

import contextlib
import os
import sys
from unittest.mock import patch

import django

django.setup()

from django.db import DatabaseError, connection, transaction  # noqa: E402
from shop.models import Mail, Order  # type: ignore[import-not-found]  # noqa: E402
from shop.refunds import refund  # type: ignore[import-not-found]  # noqa: E402
from shop.services import place  # type: ignore[import-not-found]  # noqa: E402

from txmsg import MisuseError, Producer  # noqa: E402
from txmsg.contrib.django import producer, send, transactional_message  # noqa: E402


@transactional_message(topic="order.placed", key="number")
def place_and_raise(number: int) -> None:
    Order.objects.create(number=number)
    raise KeyError(number)


@transactional_message(topic="order.placed", key="number")
def place_though_something_failed(number: int) -> None:
    Order.objects.create(number=number)
    try:
        with connection.cursor() as cursor:
            cursor.execute("select * from there_is_no_such_table")
    except DatabaseError:
        pass  # PostgreSQL will answer COMMIT with a ROLLBACK


@transactional_message(topic="order.placed", key="number")
def place_and_die(number: int) -> None:
    Order.objects.create(number=number)
    os._exit(9)


@transactional_message(topic="order.placed", ordering_key=lambda number: "all", when_away="outbox")
def keep(number: int) -> None:
    Order.objects.create(number=number)


def while_no_broker_answers() -> None:
    keep(number=31)
    with transaction.atomic():
        keep(number=32)
        with contextlib.suppress(LookupError), transaction.atomic():
            keep(number=33)
            raise LookupError
    with transaction.atomic():
        keep(number=34)
        transaction.set_rollback(True)
    refund(number=31)
    with transaction.atomic():
        keep(number=35)
        producer()._outbox.circuit_breaker.note_answer()  # as if a broker had just answered
        with patch.object(Producer, "_half", side_effect=AssertionError("it would come before 35")):
            keep(number=36)


def all_kinds() -> None:
    place(number=1)
    with transaction.atomic():
        place(number=2)
        with transaction.atomic():
            place(number=3)
    with transaction.atomic():
        place(number=4)
        transaction.set_rollback(True)
    with transaction.atomic():
        place(number=5)
        try:
            with transaction.atomic():
                place(number=6)
                raise LookupError
        except LookupError:
            pass
        with contextlib.suppress(KeyError):
            place_and_raise(number=7)
    with contextlib.suppress(KeyError):
        place_and_raise(number=8)
    with contextlib.suppress(DatabaseError):
        place_though_something_failed(number=9)
    with transaction.atomic():
        place(number=10)
        transaction.on_commit(lambda: place(number=11))


def place_by_hand(number: int) -> None:
    """Place an order whose key the database generates."""
    order = Order.objects.create(number=number)
    send("order.numbered", {"number": number}, key=order.pk)


def sent_in_blocks() -> None:
    """Send in `atomic` blocks of each kind."""
    with transaction.atomic():
        place_by_hand(1)
        with contextlib.suppress(LookupError), transaction.atomic():
            place_by_hand(2)
            with transaction.atomic():
                place_by_hand(3)
            raise LookupError
        with transaction.atomic():
            place_by_hand(4)
        with transaction.atomic(savepoint=False):
            place_by_hand(5)
    with transaction.atomic():
        place_by_hand(6)
        transaction.set_rollback(True)
        with patch.object(Producer, "half", side_effect=AssertionError("stored in a block that cannot commit")):
            with contextlib.suppress(transaction.TransactionManagementError):
                send("order.numbered", {"number": 6})
    with contextlib.suppress(LookupError), transaction.atomic():
        place_by_hand(7)
        raise LookupError
    with contextlib.suppress(DatabaseError), transaction.atomic():
        place_by_hand(8)
        try:
            with connection.cursor() as cursor:
                cursor.execute("select * from there_is_no_such_table")
        except DatabaseError:
            pass  # PostgreSQL will answer COMMIT with a ROLLBACK
    with transaction.atomic():
        place(number=9)  # the decorated function, in the same block
        place_by_hand(10)
    for number in (11, 12):  # without a block: the save has already committed
        try:
            place_by_hand(number)
        except MisuseError:
            Order.objects.get(number=number).delete()
    with transaction.atomic():
        transaction.on_commit(in_a_block_of_its_own)


def in_a_block_of_its_own() -> None:
    with transaction.atomic():
        place_by_hand(13)


def signalled() -> None:
    """Send by a receiver of `post_save`; the message of the first mail must exist."""
    with transaction.atomic():
        Mail.objects.create(order_number=1)
        with contextlib.suppress(LookupError), transaction.atomic():
            Mail.objects.create(order_number=2)
            raise LookupError
    try:
        Mail.objects.create(order_number=3)
    except MisuseError:
        return
    raise AssertionError("a save outside of a block was not refused")


def die_before_the_commit() -> None:
    place_and_die(number=21)


def die_after_the_commit() -> None:
    producer().hooks.before_end = lambda half, state: os._exit(9)
    place(number=22)


globals()[sys.argv[1]]()
producer().close()
print(sorted(Order.objects.values_list("number", flat=True)))
