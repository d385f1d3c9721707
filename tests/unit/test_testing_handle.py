"""`txmsg.testing.handle`: handlers of an application are called with messages, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from txmsg.client.app import Depends, Router, Txmsg
from txmsg.consumer.failures import Reject
from txmsg.errors import MisuseError
from txmsg.message import Message, ReceivedMessage
from txmsg.message.typed.topic import Topic
from txmsg.testing import handle, handle_async


@dataclass
class Order:
    n: int


ORDERS = Topic("order", Order)


def tenant() -> str:
    return "acme"


@pytest.fixture
def seen() -> list[Any]:
    return []


@pytest.fixture
def app(seen: list[Any]) -> Txmsg:
    app, router = Txmsg(), Router(group="orders")
    app.include(router)

    @app.middleware
    @contextmanager
    def around(message: ReceivedMessage) -> Iterator[None]:
        seen.append("around")
        yield

    @router.subscribe(ORDERS, rate=0.001)
    def take(order: Order, of: Annotated[str, Depends(tenant)]) -> None:
        if order.n < 0:
            raise LookupError(order.n)
        seen.append((order.n, of))

    @app.subscribe("mail", group="a", batch=10)
    async def mail(messages: list[ReceivedMessage]) -> list[Exception | None]:
        seen.append([message.key for message in messages])
        return [LookupError("b") if message.key == "b" else None for message in messages]

    @app.subscribe("mail", group="urgent", tag="urgent")
    def mail_now(message: ReceivedMessage) -> None:
        seen.append((message.tag, message.attempt))

    return app


def test_a_handler_gets_payload_dependencies_and_middleware(app: Txmsg, seen: list[Any]) -> None:
    handle(app, ORDERS.message(Order(1)), ORDERS.message(Order(2)))
    app.dependency_overrides[tenant] = lambda: "other"
    handle(app, ORDERS.message(Order(3)))
    handle(app, ORDERS.message(Order(4)), overrides={tenant: lambda: "of the call"})
    assert [each for each in seen if each != "around"] == [(1, "acme"), (2, "acme"), (3, "other"), (4, "of the call")]
    assert seen.count("around") == 4


def test_an_exception_of_the_handler_is_raised_by_the_call(app: Txmsg) -> None:
    with pytest.raises(LookupError, match="-1"):
        handle(app, ORDERS.message(Order(-1)))
    with pytest.raises(Reject, match="order"):
        handle(app, Message("order", b"no JSON"))


async def test_a_batch_handler_gets_a_list_and_an_exception_in_its_results_is_raised(
    app: Txmsg, seen: list[Any]
) -> None:
    await handle_async(app, *(Message("mail", b"", key=key) for key in "ac"))
    assert ["a", "c"] in seen
    with pytest.raises(LookupError, match="b"):
        await handle_async(app, *(Message("mail", b"", key=key) for key in "ab"))


def test_a_received_message_is_passed_unchanged(app: Txmsg, seen: list[Any]) -> None:
    handle(app, ReceivedMessage("mail", b"", tag="urgent", attempt=3), group="urgent")
    assert ("urgent", 3) in seen


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "topics: none"),
        ([Message("mail", b"", tag="urgent")], "several groups, a, urgent: say which one"),
        ([Message("mial", b"")], "topics are mail, order"),
        ([Message("mail", b""), ORDERS.message(Order(1))], "topics: mail, order"),
    ],
)
def test_a_message_without_exactly_one_handler_is_refused(app: Txmsg, messages: list[Message], said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        handle(app, *messages)


async def test_calling_handle_for_a_coroutine_names_the_async_variant(app: Txmsg) -> None:
    with pytest.raises(MisuseError, match="await handle_async"):
        handle(app, ORDERS.message(Order(1)))


def test_a_handler_of_a_topic_by_name_gets_its_annotated_payload() -> None:
    app = Txmsg(group="mailer")
    got: list[Any] = []

    @app.subscribe("of.field")
    def of_field(order_id: int, note: str = "none") -> None:
        got.append((order_id, note))

    @app.subscribe("of.model")
    async def of_model(order: Order) -> None:
        got.append(order)

    handle(app, Message("of.field", b'{"order_id": 1}'), Message("of.field", b'{"order_id": 2, "note": "x"}'))
    handle(app, Message("of.model", b'{"n": 3}'))
    assert got == [(1, "none"), (2, "x"), Order(3)]
    with pytest.raises(Reject, match="'order_id' must be a whole number"):
        handle(app, Message("of.field", b'{"order_id": "1"}'))
