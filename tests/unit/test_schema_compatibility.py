"""Compatibility of a reader's schema with a sender's, by the schemas of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pydantic
import pytest

from txmsg import Topic
from txmsg.message.typed.codecs import Schema
from txmsg.message.typed.compatibility import not_read
from txmsg.message.typed.merging import merged


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
def test_the_incompatible_field_is_named(
    schema_of: Callable[[Any], Schema], sent: Any, read: Any, refused: list[str]
) -> None:
    assert not_read(schema_of(sent), schema_of(read), reads_all=True) == refused


@pytest.mark.parametrize("schema_of", [of_dataclass, of_pydantic])
def test_tuples_of_different_lengths_are_incompatible(schema_of: Callable[[Any], Schema]) -> None:
    pair, triple = schema_of(tuple[int, str]), schema_of(tuple[int, str, int])
    assert "x has another number of items" in not_read(pair, triple, reads_all=True)
    assert "x has another number of items" in not_read(triple, pair, reads_all=True)


def test_recursive_types_are_compared_completely() -> None:
    old, new = Topic("staff", Employee).schema(), Topic("staff", NumberedEmployee).schema()
    assert not_read(old, old, reads_all=True) == []
    assert not_read(old, new, reads_all=True) == ["name is sent as string and read as integer"]


def test_a_union_is_compatible_if_one_member_reads_all_of_it() -> None:
    """A problem found in a definition is found again when another member refers to it."""

    def schema(article: type) -> Schema:
        first, second = ({"type": "object", "properties": {"line": {"$ref": "#/$defs/Line"}}} for _ in range(2))
        line = {"type": "object", "properties": {"article": {"type": {str: "string", int: "integer"}[article]}}}
        return {"$defs": {"Line": line}, "anyOf": [first, second]}

    assert not_read(schema(str), schema(str), reads_all=True) == []
    assert not_read(schema(str), schema(int), reads_all=True) == ["line.article is sent as string and read as integer"]


def test_new_fields_need_defaults() -> None:
    first = Topic("t", make_dataclass("Order", [("id", str), ("note", str, "")])).schema()
    second = Topic("t", make_dataclass("Order", [("id", str), ("note", str, ""), ("gift", bool, False)])).schema()
    third = Topic("t", make_dataclass("Order", [("id", str), ("note", str)])).schema()
    assert not_read(first, second, reads_all=True) == []
    assert not_read(second, first, reads_all=True) == ["gift is sent and not read"]
    assert not_read(second, first, reads_all=False) == []
    assert not_read(first, third, reads_all=True) == ["note is required and not always sent"]


def of_number(kind: type, **bounds: Any) -> Schema:
    return Topic("t", pydantic.create_model("O", x=(kind, pydantic.Field(**bounds)))).schema()


@pytest.mark.parametrize(
    ("kind", "sent", "read", "refused"),
    [
        (int, {"ge": 1, "le": 9}, {"ge": 0, "le": 10}, []),
        (int, {"ge": 1}, {"ge": 2}, ["a minimum of 2 only"]),
        (int, {}, {"lt": 9}, ["a exclusiveMaximum of 9 only"]),
        (int, {"gt": 0}, {"ge": 1}, []),
        (int, {"ge": 1}, {"gt": 0}, []),
        (int, {"lt": 10}, {"le": 9}, []),
        (int, {"gt": 0}, {"ge": 2}, ["a minimum of 2 only"]),
        (float, {"gt": 0}, {"ge": 0}, []),
        (float, {"ge": 0}, {"gt": 0}, ["a exclusiveMinimum of 0 only"]),
        (float, {"lt": 5}, {"le": 5}, []),
        (float, {"le": 5}, {"lt": 5}, ["a exclusiveMaximum of 5 only"]),
        (float, {"gt": 1}, {"ge": 0}, []),
        (float, {"gt": 0}, {"ge": 1}, ["a minimum of 1 only"]),
    ],
)
def test_bounds_may_only_be_widened(kind: type, sent: dict[str, Any], read: dict[str, Any], refused: list[str]) -> None:
    found = not_read(of_number(kind, **sent), of_number(kind, **read), reads_all=True)
    assert found == [f"x is read with {each}" for each in refused]


def test_a_multiple_of_a_multiple_is_compatible() -> None:
    def found(sent: Schema, read: Schema) -> list[str]:
        return not_read(sent, read, reads_all=True)

    four, two = of_number(int, multiple_of=4), of_number(int, multiple_of=2)
    assert found(four, two) == []
    assert found(two, four) == ["x is read as a multiple of 4 only, not of 2"]
    assert found(of_number(int), two) == ["x is read as a multiple of 2 only"]
    assert found(of_number(int), of_number(int, multiple_of=1)) == []
    assert found(of_number(float, multiple_of=0.3), of_number(float, multiple_of=0.1)) == []


Key = Annotated[str, pydantic.StringConstraints(pattern="^a")]
AOrB = Literal["a", "b"]
OtherKey = Annotated[str, pydantic.StringConstraints(pattern="^b")]


@pytest.mark.parametrize(
    ("sent", "read", "refused"),
    [
        (dict[Key, int], dict[Key, int], []),
        (dict[Key, int], dict[Key, float], []),
        (dict[Key, int], dict[str, int], []),
        (dict[Key, int], dict[Key, str], ["x.* is sent as integer and read as string"]),
        (dict[Key, int], dict[str, str], ["x.* is sent as integer and read as string"]),
        (dict[Key, int], dict[OtherKey, int], ["fields of x that match ^a may be sent and are refused"]),
        (dict[str, int], dict[Key, int], ["other fields of x may be sent and are refused"]),
        (dict[Literal["a"], int], dict[AOrB, int], []),
        (dict[AOrB, int], dict[Literal["a"], int], ["a name of a field of x may be 'b', which is not read"]),
    ],
)
def test_incompatible_property_names_are_named(sent: Any, read: Any, refused: list[str]) -> None:
    assert not_read(of_pydantic(sent), of_pydantic(read), reads_all=True) == refused


def test_a_field_is_compared_with_the_patterns_that_it_matches() -> None:
    sent = {"type": "object", "properties": {"ab": {"type": "integer"}, "c": {"type": "integer"}}}
    read = {"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}}}
    assert not_read(sent, {**read, "additionalProperties": True}, reads_all=False) == [
        "ab is sent as integer and read as string"
    ]


ADDRESS: Schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def of_address(part: Schema) -> Schema:
    return {"$defs": {"Address": ADDRESS}, "type": "object", "properties": {"to": part}, "required": ["to"]}


@pytest.mark.parametrize(
    ("sent", "read", "refused"),
    [
        ({}, {"description": "where it goes", "default": None}, []),
        ({"description": "where it goes"}, {}, []),
        ({}, {"required": ["city", "zip"]}, ["to.zip is required and not sent"]),
        ({"minProperties": 2}, {"minProperties": 1}, []),
        ({"minProperties": 1}, {"minProperties": 2}, ["to is read with a minProperties of 2 only"]),
        (
            {"properties": {"zip": {"type": "integer"}}},
            {"properties": {"zip": {"type": "string"}}},
            ["to.zip is sent as integer and read as string"],
        ),
        ({"properties": {"city": {"minLength": 2}}}, {"properties": {"city": {"minLength": 1}}}, []),
        ({}, {"properties": {"city": {"minLength": 1}}}, ["to.city is read with a minLength of 1 only"]),
        ({"properties": {"city": {"type": "string"}}}, {"properties": {"city": {"type": ["string", "null"]}}}, []),
    ],
)
@pytest.mark.parametrize("how", ["beside", "allOf", "within"])
def test_keywords_beside_a_reference_and_in_all_of_are_compared(
    how: str, sent: Schema, read: Schema, refused: list[str]
) -> None:
    def written(words: Schema) -> Schema:
        reference: Schema = {"$ref": "#/$defs/Address"}
        match how:
            case "beside":
                return of_address({**reference, **words})
            case "allOf":
                return of_address({"allOf": [reference, words]})
            case _:
                return of_address({"allOf": [reference], **words})

    assert not_read(written(sent), written(read), reads_all=True) == refused


def test_keywords_beside_a_union_count_in_each_member() -> None:
    choice: Schema = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    wide, narrow = of_address({**choice, "minimum": 1}), of_address({**choice, "minimum": 2, "title": "To"})
    assert not_read(narrow, wide, reads_all=True) == []
    assert not_read(wide, narrow, reads_all=True) == ["to is read with a minimum of 2 only"]


def test_a_recursive_type_with_sibling_keywords_is_compared_completely() -> None:
    def of(name: str, **words: Any) -> Schema:
        again: Schema = {"$ref": "#", "properties": {"more": {"type": "integer"}}, **words}
        return {"type": "object", "properties": {"name": {"type": name}, "next": again}}

    assert not_read(of("string"), of("string"), reads_all=True) == []
    found = not_read(of("string"), of("integer", required=["more"]), reads_all=True)
    assert {"name is sent as string and read as integer", "next.more is required and not always sent"} <= set(found)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({"type": "number"}, {"type": ["integer", "null"]}, {"type": ["integer"]}),
        ({"minimum": 1, "maximum": 9}, {"minimum": 2, "maximum": 8}, {"minimum": 2, "maximum": 8}),
        ({"enum": [1, 2, 3]}, {"enum": [3, 2]}, {"enum": [2, 3]}),
        ({"multipleOf": 2}, {"multipleOf": 6}, {"multipleOf": 6}),
        ({"multipleOf": 2}, {"multipleOf": 3}, {"multipleOf": 6}),
        ({"pattern": "^a"}, {"pattern": "b$"}, {"pattern": "^a and b$"}),
        ({"additionalProperties": False}, {"additionalProperties": True}, {"additionalProperties": False}),
        ({"title": "One"}, {"title": "Other"}, {"title": "One"}),
        ({"required": ["a"]}, {"required": ["b", "a"]}, {"required": ["a", "b"]}),
    ],
)
def test_two_schemas_are_merged(one: Schema, other: Schema, both: Schema) -> None:
    assert merged([one, other]) == both


class Open(pydantic.BaseModel):
    x: int
    y: int = 0


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    x: int


def test_a_model_that_forbids_extra_fields_is_incompatible_with_new_fields() -> None:
    ignoring, forbidding = Topic("t", Open).schema(), Topic("t", Closed).schema()
    assert not_read(ignoring, forbidding, reads_all=False) == [
        "y is sent and not read",
        "other fields of the payload may be sent and are refused",
    ]
    assert not_read(forbidding, ignoring, reads_all=True) == []


def test_payloads_of_different_types_are_incompatible() -> None:
    texts, objects, files = (Topic("t", kind).schema() for kind in (str, dict, bytes))
    assert not_read(texts, objects, reads_all=True) == ["the payload is sent as string and read as object"]
    assert not_read(files, texts, reads_all=True) == ["the payload is sent as anything and read as string"]
    assert not_read(objects, of_dataclass(int), reads_all=True) == [
        "id is required and not sent",
        "x is required and not sent",
    ]
