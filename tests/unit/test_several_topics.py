"""A subscription to several topics: names, patterns, and payload types selected by topic. Without a broker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from txmsg.client.app import Txmsg
from txmsg.consumer.failures import Reject
from txmsg.errors import MisuseError, TxmsgError
from txmsg.message import Message, ReceivedMessage
from txmsg.message.typed.topic import Topic
from txmsg.testing import handle as handle_message

seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def one(message: ReceivedMessage) -> None: ...


@dataclass
class Placed:
    order_id: int


@dataclass
class Paid:
    order_id: int
    cents: int


PLACED, PAID = Topic("order.placed", Placed), Topic("order.paid", Paid)


def of_either(event: Placed | Paid) -> None:
    seen.append(event)


def of_either_message(message: ReceivedMessage[Placed | Paid]) -> None:
    seen.append(message.payload)


def of_either_list(events: list[Placed | Paid]) -> None:
    seen.extend(events)


@pytest.mark.parametrize(
    ("handler", "options"),
    [(of_either, {}), (of_either_message, {}), (of_either_list, {"batch": 2}), (of_either, {"runs_in": "processes"})],
)
def test_the_topic_selects_the_payload_type_of_a_union(handler: Any, options: Any) -> None:
    app = Txmsg(group="g")
    app.subscribe(PLACED, PAID, **options)(handler)
    paid = Message("order.paid", b'{"order_id": 1, "cents": 7}')  # valid as Placed, too
    handle_message(app, paid, PLACED.message(Placed(2)))
    if not options.get("runs_in"):
        assert seen == [Paid(1, 7), Placed(2)]
    with pytest.raises(Reject, match=r"topic 'order\.paid' is not a valid Paid"):
        handle_message(app, Message("order.paid", b'{"order_id": 1}'))


def test_topics_given_by_name_have_the_payload_of_the_annotation() -> None:
    app = Txmsg(group="g")

    @app.subscribe("order.placed", "order.moved")
    def handle(order_id: int, message: ReceivedMessage) -> None:
        seen.append((message.topic, order_id))

    app.subscribe(PLACED, "order.shipped", group="other")(of_placed)
    for topic in ("order.moved", "order.placed"):
        handle_message(app, Message(topic, b'{"order_id": 3}'), group="g")
    handle_message(app, Message("order.shipped", b'{"order_id": 4}'))
    assert seen == [("order.moved", 3), ("order.placed", 3), Placed(4)]


def of_placed(event: Placed) -> None:
    seen.append(event)


@pytest.mark.parametrize(
    ("topics", "handler", "said"),
    [
        (("a", "b"), of_either, r"Placed | Paid, and its topics are names, which do not say which: give @subscribe a"),
        ((PLACED, PAID, "c"), of_either, r"'c' of topics 'order.placed', 'order.paid', 'c' does not say whether its"),
        ((PLACED, PAID), of_placed, "annotate it with ReceivedMessage, Placed | Paid, logging.Logger"),
        (("a", "b", "a"), one, "@subscribe names topic 'a' twice, also by 'a': leave one of them out"),
        (("order.*", "order.paid"), one, "@subscribe names topic 'order.paid' twice, also by 'order.*'"),
        (("o*", "order.*"), one, "@subscribe names topic 'order.*' twice, also by 'o*'"),
        ((), one, "@subscribe is used without a topic"),
        (("order.*.x",), one, "it holds '*'"),
        (("**",), one, "it holds '*'"),
        ((["a", "b"],), one, "it is of type list, not str"),
    ],
)
def test_ambiguous_topics_are_refused_at_declaration(topics: Any, handler: Any, said: str) -> None:
    with pytest.raises(TxmsgError, match=re.escape(said)):
        Txmsg(group="g").subscribe(*topics)(handler)


@pytest.mark.parametrize("topics", [("order.*",), ("a", "order.paid"), ("*",), ("order.p*",)])
def test_overlapping_topics_of_two_handlers_of_a_group_are_refused(topics: Any) -> None:
    app = Txmsg(group="g")
    app.subscribe("order.paid", "b")(one)
    app.subscribe(*topics, group="other")(one)
    assert len(app.subscriptions) == 2
    app.subscribe(*topics)(one)
    with pytest.raises(MisuseError, match="group g has two handlers for topic"):
        assert app.subscriptions


def test_handle_accepts_messages_of_topics_that_match_a_pattern() -> None:
    app = Txmsg(group="g")

    @app.subscribe("order.*")
    def handle(order_id: int, message: ReceivedMessage) -> None:
        seen.append((message.topic, order_id))

    handle_message(app, Message("order.placed", b'{"order_id": 3}'))
    with pytest.raises(Reject, match=r"topic 'order\.moved' is not a valid fields of .*handle"):
        handle_message(app, Message("order.moved", b"{}"))
    for topic in ("orders", "my.order.placed", "order"):
        with pytest.raises(MisuseError, match=rf"no handler gets a message of topic '{topic}'.*topics are order\.\*"):
            handle_message(app, Message(topic, b"{}"))
    assert seen == [("order.placed", 3)]
