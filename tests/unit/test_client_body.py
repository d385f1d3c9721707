"""Conversion of a call to a message."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from txmsg.client.flows.body import Builder, MessagePlan, body_of_arguments
from txmsg.errors import InvalidMessage, InvalidName, MisuseError
from txmsg.message import Message

USER = UUID("01890000-0000-7000-8000-000000000001")


def plan_of(
    function: Callable[..., object],
    *,
    topic: str | None = "user.registered",
    key: str | Callable[..., object] | None = None,
    builder: Builder | None = None,
) -> MessagePlan:
    signature = inspect.signature(function)
    return MessagePlan(owner="register()", signature=signature, topic=topic, key=key, tag=None, builder=builder)


def body_of(arguments: Mapping[str, object]) -> bytes:
    return body_of_arguments(arguments, owner="register()")


def register(user_id: UUID, email: str, plan: str = "free") -> None: ...


def test_the_body_is_the_arguments_as_json_with_defaults() -> None:
    [message] = plan_of(register, key="user_id").messages((USER,), {"email": "ö@example.org"})
    assert json.loads(message.body) == {"user_id": str(USER), "email": "ö@example.org", "plan": "free"}
    assert message.key == str(USER)
    assert message.topic == "user.registered"


def test_ids_decimals_and_times_become_strings() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    body = json.loads(body_of({"id": USER, "price": Decimal("1.10"), "at": at, "on": date(2026, 1, 2)}))
    assert body == {"id": str(USER), "price": "1.10", "at": "2026-01-02T03:04:05+00:00", "on": "2026-01-02"}


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", float("nan"), "\ud800", {USER: 1}])
def test_an_argument_that_json_cannot_carry_is_named(value: object) -> None:
    with pytest.raises(InvalidMessage, match="argument 'odd'"):
        body_of({"fine": 1, "odd": value})


def test_a_self_referencing_argument_is_named() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidMessage, match="argument 'odd'"):
        body_of({"odd": loop})


def test_a_key_that_names_no_argument_is_refused_at_declaration() -> None:
    with pytest.raises(MisuseError, match="there are user_id, email, plan"):
        plan_of(register, key="userid")


def test_an_invalid_topic_is_refused_at_declaration() -> None:
    with pytest.raises(InvalidName, match="topic 'user registered'"):
        plan_of(register, topic="user registered")


def test_a_declaration_without_topic_and_message_is_refused() -> None:
    with pytest.raises(MisuseError, match="topic="):
        plan_of(register, topic=None)


def test_an_ordering_key_is_taken_from_arguments_like_a_key() -> None:
    plan = replace(plan_of(register), ordering_key="user_id")
    [message] = plan.messages((USER, "e"), {})
    assert (message.key, message.ordering_key) == (None, str(USER))
    with pytest.raises(MisuseError, match=r"ordering_key='userid' names no argument of register\(\)"):
        replace(plan_of(register), ordering_key="userid")
    with pytest.raises(InvalidMessage, match=r"the ordering_key of register\(\) is a list, .* give ordering_key="):
        replace(plan, ordering_key=lambda *_args: []).messages((USER, "e"), {})


@pytest.mark.parametrize(("value", "key"), [(7, "7"), (USER, str(USER)), ("k", "k"), (None, None)])
def test_a_key_function_may_return_values_with_an_obvious_text(value: object, key: str | None) -> None:
    [message] = plan_of(register, key=lambda *_args, **_kwargs: value).messages((USER, "e"), {})
    assert message.key == key


def test_a_key_without_an_obvious_text_is_refused() -> None:
    with pytest.raises(InvalidMessage, match=r"the key of register\(\) is a list"):
        plan_of(register, key=lambda *_args: []).messages((USER, "e"), {})


def test_wrong_arguments_raise_type_error_before_anything_is_sent() -> None:
    with pytest.raises(TypeError, match="email"):
        plan_of(register).messages((USER,), {})


def test_wrong_arguments_are_refused_with_the_signature_of_the_function() -> None:
    def given(plan: MessagePlan, *args: object) -> str:
        with pytest.raises(TypeError) as caught:
            plan.messages(args, {})
        assert caught.value.__suppress_context__
        return str(caught.value)

    plan = plan_of(register)
    assert given(plan).startswith("register() takes (user_id, email")
    assert given(plan).endswith("): missing a required argument: 'user_id'")
    with_session = replace(plan, gives_session=True)
    assert given(with_session, *"12345").endswith("), as session= gives the session: too many positional arguments")


def test_a_builder_may_return_bytes_a_message_or_several() -> None:
    def build(user_id: UUID, email: str) -> bytes:
        return email.encode()

    [of_bytes] = plan_of(register, key="email", builder=build).messages((USER, "e@x"), {})
    assert (of_bytes.topic, of_bytes.key, of_bytes.body) == ("user.registered", "e@x", b"e@x")

    whole = Message("other", b"1", key="k")
    assert plan_of(register, topic=None, builder=lambda *_: whole).messages((USER, "e"), {}) == [whole]
    assert plan_of(register, topic=None, builder=lambda *_: [whole, whole]).messages((USER, "e"), {}) == [whole, whole]
