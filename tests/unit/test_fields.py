"""Fields of a JSON object, by their annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from txmsg.errors import InvalidMessage, MisuseError
from txmsg.message import Message
from txmsg.message.typed.fields import fields_type, is_field
from txmsg.message.typed.text import json_of
from txmsg.message.typed.topic import Topic


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Order(TypedDict):
    order_id: int
    note: NotRequired[str]


ID = UUID("01890000-0000-7000-8000-000000000001")
VALUES: list[tuple[Any, Any]] = [
    (int, 2**70),
    (float, 1.5),
    (float, 3),
    (str, "ä"),
    (bool, False),
    (Any, [1, {"a": None}]),
    (UUID, ID),
    (Decimal, Decimal("1.10")),
    (datetime, datetime(2026, 5, 1, 10, tzinfo=UTC)),
    (date, date(2026, 5, 1)),
    (time, time(10, 30)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (timedelta, -timedelta(seconds=1.5)),
    (timedelta, timedelta.min),
    (timedelta, timedelta.max),
    (list, [1, "a"]),
    (dict, {"a": [1]}),
    (list[UUID], [ID]),
    (Sequence[int], [1, 2]),
    (dict[str, list[int]], {"a": [1]}),
    (Mapping[str, Decimal], {"a": Decimal(1)}),
    (int | None, None),
    (Optional[UUID], ID),  # noqa: UP045 - as older code writes it
    (Annotated[int, "of a person"], 3),
    (Literal["a", "b"], "b"),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=str)
def test_a_value_round_trips(kind: Any, value: Any) -> None:
    topic: Topic[Any] = Topic("t", fields_type("f", {"value": (kind, True)}))
    message = Message("t", json_of({"value": value}))
    assert topic.payload_of(message) == {"value": value}
    if value is not None:
        assert type(topic.payload_of(message)["value"]) is type(float(value) if kind is float else value)


def test_pydantic_and_msgspec_read_a_sent_duration() -> None:
    class Model(pydantic.BaseModel):
        wait: timedelta

    class Struct(msgspec.Struct):
        wait: timedelta

    wait = timedelta(hours=30, microseconds=250_000)
    message = Message("t", json_of({"wait": wait}))
    assert Topic("t", Model).payload_of(message).wait == wait
    assert Topic("t", Struct).payload_of(message).wait == wait


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("P1DT2H3M4.5S", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("PT1M", timedelta(minutes=1)),
        ("P2D", timedelta(2)),
    ],
)
def test_a_duration_of_a_foreign_sender_is_read(text: str, value: timedelta) -> None:
    topic: Topic[Any] = Topic("t", fields_type("f", {"value": (timedelta, True)}))
    assert topic.payload_of(Message("t", json_of({"value": text}))) == {"value": value}


@pytest.mark.parametrize(
    "text", ["P", "PT", "P1DT", "P1Y", "90", "PT1.5M", "P999999999D1", "P999999999DT999999999H", "PT１S"]
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    topic: Topic[Any] = Topic("t", fields_type("f", {"value": (timedelta, True)}))
    with pytest.raises(InvalidMessage, match="'value' must be a duration such as"):
        topic.payload_of(Message("t", json_of({"value": text})))


@pytest.mark.parametrize(("kind", "sent", "value"), [(Colour, "red", Colour.RED), (Level, 1, Level.LOW)])
def test_an_enum_is_read_by_its_value(kind: Any, sent: object, value: object) -> None:
    topic: Topic[Any] = Topic("t", fields_type("f", {"value": (kind, True)}))
    assert topic.payload_of(Message("t", json_of({"value": sent}))) == {"value": value}


@dataclass
class Item:
    price: Decimal
    path: Path


class Model(pydantic.BaseModel):
    at: date


class Struct(msgspec.Struct):
    colour: Colour


def test_models_enums_and_paths_are_encoded_as_json() -> None:
    values = {
        "item": Item(Decimal("1.5"), Path("/a/b")),
        "model": Model(at=date(2026, 5, 1)),
        "struct": Struct(Colour.RED),
    }
    assert json.loads(json_of({**values, "level": Level.LOW, "colours": [Colour.RED]})) == {
        "item": {"price": "1.5", "path": "/a/b"},
        "model": {"at": "2026-05-01"},
        "struct": {"colour": "red"},
        "level": 1,
        "colours": ["red"],
    }
    for wrong in (Item, Model, Struct, Other(), object()):
        with pytest.raises(TypeError, match="there is no JSON for"):
            json_of(wrong)


WRONG: list[tuple[Any, bytes, str]] = [
    (int, b'"1"', "must be a whole number"),
    (int, b"1.0", "must be a whole number"),
    (int, b"true", "must be a whole number"),
    (float, b"1e999", "must be a finite number"),
    (float, b"1" + b"0" * 400, "must be a finite number"),
    (float, b'"1"', "must be a number"),
    (str, b"null", "must be a text"),
    (bool, b"1", "must be true or false"),
    (UUID, b'"x"', "must be a UUID"),
    (UUID, b"7", "must be a UUID"),
    (Decimal, b'"x"', "must be a decimal number as text"),
    (datetime, b'"soon"', "must be a date with a time"),
    (list[int], b'[1, "secret"]', "must be a whole number"),
    (dict[str, int], b"[]", "must be an object"),
    (Colour, b'"secret"', "must be one of red"),
    (Colour, b"[]", "must be one of red"),
    (Literal["a"], b"true", "must be one of a"),
]


@pytest.mark.parametrize(("kind", "body", "said"), WRONG, ids=str)
def test_a_value_of_another_type_is_invalid_and_not_quoted(kind: Any, body: bytes, said: str) -> None:
    topic: Topic[Any] = Topic("t", fields_type("f", {"value": (kind, True)}))
    with pytest.raises(InvalidMessage, match=f"'value' {said}$") as caught:
        topic.payload_of(Message("t", b'{"value": ' + body + b"}"))
    assert "secret" not in str(caught.value)


class Other:
    pass


@pytest.mark.parametrize("kind", [Other, int | str, list[Other], dict[int, str], tuple[int, int], Colour | None | int])
def test_a_type_without_json_is_refused_as_a_field(kind: Any) -> None:
    assert not is_field(kind)
    with pytest.raises(MisuseError, match=r"field 'value' of f .* make it a pydantic model"):
        Topic("t", TypedDict("f", {"value": kind}))  # type: ignore[operator]


def test_a_typed_dict_is_a_payload_with_required_and_optional_fields() -> None:
    topic = Topic("order.placed", Order, key="order_id")
    message = topic.message({"order_id": 7})
    assert (message.body, message.key) == (b'{"order_id":7}', "7")
    assert topic.payload_of(Message("order.placed", b'{"note": "n", "order_id": 8, "more": 1}')) == {
        "order_id": 8, "note": "n",
    }  # fmt: skip
    with pytest.raises(InvalidMessage, match="it lacks 'order_id'"):
        topic.payload_of(Message("order.placed", b"{}"))
    with pytest.raises(InvalidMessage, match="'order_id' must be a whole number"):
        topic.message({"order_id": "7"})  # type: ignore[typeddict-item]
    assert topic.schema() == {
        "type": "object",
        "properties": {"order_id": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["order_id"],
    }
    assert topic._is_made_of(["order_id"])
    assert not topic._is_made_of(["order_id", "more"])
    with pytest.raises(MisuseError, match="key='id' of topic 'x' is not a field of Order: there are order_id, note"):
        Topic("x", Order, key="id")
