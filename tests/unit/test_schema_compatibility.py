"""What readers by one schema refuse in what was sent by another, by the schemas of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pydantic
import pytest

from txmsg import Topic
from txmsg.typed.codecs import Schema
from txmsg.typed.compatibility import not_read


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class LineWithPrice:
    article: str
    price: int
    count: int = 1


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass
class Bush:
    name: int
    children: list[Bush] = field(default_factory=list)


class Employee(pydantic.BaseModel):
    name: str
    manager: Employee | None = None


class NumberedEmployee(pydantic.BaseModel):
    name: int
    manager: NumberedEmployee | None = None


class Colour(Enum):
    RED = "red"
    GREEN = "green"


def of_dataclass(annotation: Any) -> Schema:
    kind = make_dataclass("Order", [("id", str), ("x", annotation)])
    return Topic("t", kind).schema()


def of_pydantic(annotation: Any) -> Schema:
    return Topic("t", pydantic.create_model("Order", id=(str, ...), x=(annotation, ...))).schema()


@pytest.mark.parametrize("schema_of", [of_dataclass, of_pydantic])
@pytest.mark.parametrize(
    ("sent", "read", "refused"),
    [
        (int, int, []),
        (int, float, []),
        (int, int | None, []),
        (int, int | str, []),
        (Literal["a"], Literal["a", "b"], []),
        (Literal["a"], str, []),
        (UUID, str, []),
        (list[Line], list[Line], []),
        (Tree, Tree, []),
        (int, Any, []),
        (dict[str, int], dict[str, float], []),
        (float, int, ["x is sent as number and read as integer"]),
        (int, str, ["x is sent as integer and read as string"]),
        (int | None, int, ["x is sent as null and read as integer"]),
        (Any, int, ["x is sent as anything and read as integer"]),
        (str, UUID, ["x is read with the format uuid only"]),
        (str, Literal["a"], ["x may be any string, and is read as 'a' only"]),
        (Colour, Literal["green"], ["x may be 'red', which is not read"]),
        (list[int], list[str], ["x[] is sent as integer and read as string"]),
        (list[Any], list[int], ["x[] is sent as anything and read as integer"]),
        (dict[str, int], dict[str, str], ["x.* is sent as integer and read as string"]),
        (tuple[int, str], tuple[int, int], ["x[] is sent as string and read as integer"]),
        (list[Line], list[LineWithPrice], ["x[].price is required and not sent"]),
        (LineWithPrice, Line, ["x.price is sent and not read"]),
        (Line | None, LineWithPrice | None, ["x.price is required and not sent"]),
        (Tree, Bush, ["x.name is sent as string and read as integer"]),
    ],
)  # fmt: skip
def test_the_field_that_is_not_read_is_named(
    schema_of: Callable[[Any], Schema], sent: Any, read: Any, refused: list[str]
) -> None:
    assert not_read(schema_of(sent), schema_of(read), reads_all=True) == refused


@pytest.mark.parametrize("schema_of", [of_dataclass, of_pydantic])
def test_tuples_of_other_lengths_are_not_read(schema_of: Callable[[Any], Schema]) -> None:
    pair, triple = schema_of(tuple[int, str]), schema_of(tuple[int, str, int])
    assert "x has another number of items" in not_read(pair, triple, reads_all=True)
    assert "x has another number of items" in not_read(triple, pair, reads_all=True)


def test_a_type_that_may_hold_another_of_its_kind_is_compared_to_its_end() -> None:
    old, new = Topic("staff", Employee).schema(), Topic("staff", NumberedEmployee).schema()
    assert not_read(old, old, reads_all=True) == []
    assert not_read(old, new, reads_all=True) == ["name is sent as string and read as integer"]


def test_a_choice_is_read_if_one_of_its_kinds_reads_it_all() -> None:
    """What was found in a definition once is found again where it stands in another choice."""

    def schema(article: type) -> Schema:
        first, second = ({"type": "object", "properties": {"line": {"$ref": "#/$defs/Line"}}} for _ in range(2))
        line = {"type": "object", "properties": {"article": {"type": {str: "string", int: "integer"}[article]}}}
        return {"$defs": {"Line": line}, "anyOf": [first, second]}

    assert not_read(schema(str), schema(str), reads_all=True) == []
    assert not_read(schema(str), schema(int), reads_all=True) == ["line.article is sent as string and read as integer"]


def test_fields_come_with_defaults() -> None:
    first = Topic("t", make_dataclass("Order", [("id", str), ("note", str, "")])).schema()
    second = Topic("t", make_dataclass("Order", [("id", str), ("note", str, ""), ("gift", bool, False)])).schema()
    third = Topic("t", make_dataclass("Order", [("id", str), ("note", str)])).schema()
    assert not_read(first, second, reads_all=True) == []
    assert not_read(second, first, reads_all=True) == ["gift is sent and not read"]
    assert not_read(second, first, reads_all=False) == []
    assert not_read(first, third, reads_all=True) == ["note is required and not always sent"]


def test_bounds_may_be_widened_only() -> None:
    def schema(**bounds: Any) -> Schema:
        return pydantic.TypeAdapter(pydantic.create_model("O", x=(int, pydantic.Field(**bounds)))).json_schema()

    assert not_read(schema(ge=1, le=9), schema(ge=0, le=10), reads_all=True) == []
    assert not_read(schema(ge=1), schema(ge=2), reads_all=True) == ["x is read with a minimum of 2 only"]
    assert not_read(schema(), schema(lt=9), reads_all=True) == ["x is read with a exclusiveMaximum of 9 only"]


class Open(pydantic.BaseModel):
    x: int
    y: int = 0


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    x: int


def test_a_model_that_forbids_other_fields_refuses_them() -> None:
    ignoring, forbidding = Topic("t", Open).schema(), Topic("t", Closed).schema()
    assert not_read(ignoring, forbidding, reads_all=False) == [
        "y is sent and not read",
        "other fields of the payload may be sent and are refused",
    ]
    assert not_read(forbidding, ignoring, reads_all=True) == []


def test_payloads_of_another_kind_are_not_read() -> None:
    texts, objects, files = (Topic("t", kind).schema() for kind in (str, dict, bytes))
    assert not_read(texts, objects, reads_all=True) == ["the payload is sent as string and read as object"]
    assert not_read(files, texts, reads_all=True) == ["the payload is sent as anything and read as string"]
    assert not_read(objects, of_dataclass(int), reads_all=True) == [
        "id is required and not sent",
        "x is required and not sent",
    ]
