"""The columns of payloads in Spark: from JSON Schemas of pydantic and msgspec, and from foreign ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta
from pydantic import BaseModel

from txmsg import Topic
from txmsg.errors import MisuseError
from txmsg.spark import payload_schema


class Category(Enum):
    FOOD = "food"
    BOOKS = "books"


class Item(BaseModel):
    name: str
    price: Decimal
    parts: list[Item] = []


class Order(BaseModel):
    order_id: int
    category: Category
    kind: Literal["web", "shop"]
    paid: bool
    weight_kg: float | None
    placed_at: datetime
    ship_on: date | None = None
    items: list[Item]
    counts: dict[str, int]
    note: str | int = ""
    extra: dict[str, Any] = {}


@dataclass
class Place:
    street: str
    digest: bytes


@dataclass
class Customer:
    name: str
    born_on: date | None
    place: Place
    seen_at: list[Annotated[datetime, Meta(tz=True)]]
    told_at: datetime
    pair: tuple[int, str]
    parent: Customer | None = None


def test_a_pydantic_model_becomes_columns() -> None:
    # A price may be a number or a text, and an item has items: both stay JSON.
    items = "array<struct<name:string,price:string,parts:array<string>>>"
    assert payload_schema(Topic("orders", Order)).simpleString() == (
        "struct<order_id:bigint,category:string,kind:string,paid:boolean,weight_kg:double,placed_at:timestamp,"
        f"ship_on:date,items:{items},counts:map<string,bigint>,note:string,extra:string>"
    )


def test_a_dataclass_becomes_columns() -> None:
    # A date-time has a timezone, which msgspec knows only of annotated ones.
    assert payload_schema(Topic("customers", Customer)).simpleString() == (
        "struct<name:string,born_on:date,place:struct<street:string,digest:binary>,seen_at:array<timestamp>,"
        "told_at:string,pair:string,parent:string>"
    )


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": ["integer", "null"]}, "bigint"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "double"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "string"),
        ({"enum": [1, 2, None]}, "bigint"),
        ({"enum": ["a", True]}, "string"),
        ({"const": True}, "boolean"),
        ({"type": "null"}, "string"),
        ({"type": "array", "items": {"type": "null"}}, "array<string>"),
        ({"type": "array"}, "string"),
        ({"allOf": [{"$ref": "#/$defs/a~1b"}]}, "date"),
        ({"type": "object", "additionalProperties": {"$ref": "#/$defs/a~1b"}}, "map<string,date>"),
        (True, "string"),
    ],
)
def test_types_of_foreign_schemas_become_columns(schema: object, kind: str) -> None:
    whole = {"type": "object", "properties": {"x": schema}, "$defs": {"a/b": {"type": "string", "format": "date"}}}
    assert payload_schema(whole).simpleString() == f"struct<x:{kind}>"


def test_a_payload_without_columns_is_refused() -> None:
    with pytest.raises(MisuseError, match=r"payloads of Topic\('raw', bytes\) are not JSON objects with named fields"):
        payload_schema(Topic("raw", bytes))
    with pytest.raises(MisuseError, match=r"bodies of the schema \{'type': 'array'\} are not JSON objects"):
        payload_schema({"type": "array"})
    with pytest.raises(MisuseError, match=r"refers to '#/\$defs/Other', which is not in it"):
        payload_schema({"type": "object", "properties": {"x": {"$ref": "#/$defs/Other"}}})
