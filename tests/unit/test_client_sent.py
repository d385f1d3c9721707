"""The messages of a late transaction with savepoints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from txmsg.client.flows.sent import SentMessages
from txmsg.message import Message


def bodies(sent: SentMessages) -> str:
    return "".join(message.body.decode() for message in sent.messages())


def send(sent: SentMessages, text: str) -> None:
    for each in text:
        sent.add(Message("t", each.encode()), None)


def test_messages_sent_after_a_savepoint_are_dropped_with_it() -> None:
    sent = SentMessages()
    send(sent, "a")
    sent.savepoint("X", replaces=False)
    send(sent, "bc")
    sent.rolled_back_to("X")
    send(sent, "d")
    sent.rolled_back_to("X")  # it stays until it is released
    send(sent, "e")
    assert bodies(sent) == "ae"


def test_the_later_of_two_savepoints_with_one_name_counts_until_it_is_released() -> None:
    sent = SentMessages()
    sent.savepoint("X", replaces=False)
    send(sent, "a")
    sent.savepoint("X", replaces=False)
    send(sent, "b")
    sent.rolled_back_to("X")
    assert bodies(sent) == "a"
    sent.released("X")
    sent.rolled_back_to("X")
    assert bodies(sent) == ""


def test_in_mysql_a_savepoint_replaces_one_with_its_name() -> None:
    sent = SentMessages()
    sent.savepoint("X", replaces=True)
    send(sent, "a")
    sent.savepoint("X", replaces=True)
    send(sent, "b")
    sent.released("X")
    sent.rolled_back_to("X")  # which the server refuses: there is no savepoint
    assert bodies(sent) == "ab"


def test_an_unknown_savepoint_name_changes_nothing() -> None:
    sent = SentMessages()
    send(sent, "a")
    sent.rolled_back_to("X")
    sent.released("X")
    assert bodies(sent) == "a"


def test_messages_sent_before_the_first_statement_of_a_savepoint_are_dropped_with_it() -> None:
    sent = SentMessages()
    with Session() as session:
        session.begin()
        send(sent, "a")
        outer = session.begin_nested()
        sent.add(Message("t", b"b"), outer)
        inner = session.begin_nested()
        sent.add(Message("t", b"c"), inner)
        for nested, name in ((outer, "OUTER"), (inner, "INNER")):
            sent.savepoint(name, replaces=False)
            sent.begun(nested)
        sent.add(Message("t", b"d"), inner)
        sent.rolled_back_to("INNER")
        assert bodies(sent) == "ab"
        send(sent, "e")
        sent.rolled_back_to("INNER")  # it does not replace a dropped message
        assert bodies(sent) == "ab"
        sent.rolled_back_to("OUTER")
        assert bodies(sent) == "a"


def test_an_unsent_savepoint_drops_only_its_own_messages() -> None:
    sent = SentMessages()
    with Session() as session:
        session.begin()
        send(sent, "a")
        unsent = session.begin_nested()
        sent.add(Message("t", b"b"), unsent)
        sent.add(Message("t", b"c"), session.begin_nested())
        sent.savepoint("X", replaces=False)  # over the connection, past the session
        sent.rolled_back_unsent(unsent)
        send(sent, "d")
        assert bodies(sent) == "ad"
        sent.rolled_back_to("X")
        assert bodies(sent) == "a"


@given(st.lists(st.sampled_from(["send", "savepoint", "release", "rollback"]), max_size=30))
def test_nested_savepoints_behave_as_a_stack(does: list[str]) -> None:
    """The model keeps for each savepoint the messages sent in it."""
    sent = SentMessages()
    stack: list[list[str]] = [[]]
    for number, do in enumerate(does):
        name = f"S{len(stack) - 1}"
        if do == "send":
            each = chr(0x100 + number)
            sent.add(Message("t", each.encode()), None)
            stack[-1].append(each)
        elif do == "savepoint":
            sent.savepoint(f"S{len(stack)}", replaces=False)
            stack.append([])
        elif len(stack) > 1 and do == "release":
            sent.released(name)
            inner = stack.pop()
            stack[-1] += inner
        elif len(stack) > 1:
            sent.rolled_back_to(name)
            stack[-1].clear()
    assert bodies(sent) == "".join(each for level in stack for each in level)
