"""AsyncAPI documents of topics and applications, validated by the schema of AsyncAPI 3.0.

asyncapi-3.0.0.json.gz is schemas/3.0.0.json of https://github.com/asyncapi/spec-json-schemas, Apache License 2.0,
Copyright 2016-2025 AsyncAPI Initiative.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest
from jsonschema import Draft7Validator
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from txmsg import ReceivedMessage, Router, Topic, Txmsg
from txmsg.message.typed.asyncapi import asyncapi
from txmsg.message.typed.registry import schema_of


@dataclass
class Line:
    article: str
    price: Decimal = Decimal("1.5")


@dataclass
class OrderPlaced:
    order_id: UUID
    lines: list[Line]
    sent_to: tuple[str, int] | None = None
    notes: dict[str, str] = field(default_factory=dict)


class Card(pydantic.BaseModel):
    kind: Literal["card"]
    number: str = pydantic.Field(min_length=4, alias="$ref")


class Cash(pydantic.BaseModel):
    kind: Literal["cash"]
    discriminator: dict[str, Card] = {}


class Paid(pydantic.BaseModel):
    by: Annotated[Card | Cash, pydantic.Field(discriminator="kind")]
    before: Paid | None = None


class Small(msgspec.Struct, tag=True):
    size: int


class Large(msgspec.Struct, tag=True):
    size: float


class Parcel(msgspec.Struct):
    content: Small | Large


ORDERS = Topic("order.placed", OrderPlaced, key="order_id")
PAID = Topic("paid", Paid, version=3)
PARCELS = Topic("parcel%1", Parcel)
NOTES = Topic("note", str)
FILES = Topic("file", bytes)
ANYTHING = Topic("anything", dict)


@pytest.fixture(scope="module")
def official() -> Draft7Validator:
    text = gzip.decompress(Path(__file__).with_name("asyncapi-3.0.0.json.gz").read_bytes())
    return Draft7Validator(json.loads(text))


def referred(part: Any) -> set[str]:
    """Return the targets of all references."""
    if isinstance(part, list):
        return {each for inner in part for each in referred(inner)}
    if not isinstance(part, dict):
        return set()
    own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
    return own | {each for inner in part.values() for each in referred(inner)}


def check(document: dict[str, Any], official: Draft7Validator) -> None:
    """Check that the document is valid and contains all its references."""
    errors = sorted(official.iter_errors(json.loads(json.dumps(document))), key=lambda each: list(each.path))
    assert [f"{'/'.join(map(str, each.path))}: {each.message[:300]}" for each in errors] == []
    assert referred(document)
    for reference in referred(document):
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_topics_are_channels_and_versions_are_messages(official: Draft7Validator) -> None:
    older = schema_of(Topic("paid", Cash, version=2))
    topics: tuple[Topic[Any], ...] = (ORDERS, PAID, PARCELS, NOTES, FILES, ANYTHING)
    document = asyncapi([older, *map(schema_of, topics)], title="shop", version="1.2")
    check(document, official)
    assert document["info"] == {"title": "shop", "version": "1.2"}
    assert {each["address"] for each in document["channels"].values()} == {each.name for each in topics}
    paid = document["channels"]["paid"]["messages"]
    assert {name: each["contentType"] for name, each in paid.items()} == {
        "v2": "application/json",
        "v3": "application/json",
    }
    assert paid["v3"]["headers"]["properties"]["txmsg-schema-version"]["const"] == "3"
    schemas = document["components"]["schemas"]
    assert schemas["paid.v3.Paid"]["properties"]["by"]["discriminator"] == "kind"
    assert schemas["paid.v3.Cash"]["properties"]["discriminator"]["type"] == "object"  # a field of this name
    assert schemas["paid.v3.Card"]["properties"]["$ref"]["minLength"] == 4
    assert document["channels"]["note"]["messages"]["v1"]["contentType"].startswith("text/plain")


def test_attributes_of_cloudevents_are_headers_of_topics_that_send_them(official: Draft7Validator) -> None:
    events = Topic("note", str, cloudevents="https://shop.example/notes")
    document = asyncapi([schema_of(events), schema_of(PAID)], title="shop", version="1")
    check(document, official)
    headers = document["channels"]["note"]["messages"]["v1"]["headers"]
    sent = events.message("hello").headers
    assert set(headers["properties"]) == set(sent) - {"content-type"}
    Draft7Validator(headers).validate(dict(sent))
    assert headers["properties"]["ce_source"]["const"] == "https://shop.example/notes"
    assert set(document["channels"]["paid"]["messages"]["v3"]["headers"]["properties"]) == {"txmsg-schema-version"}


def test_the_document_lists_sent_and_received_topics(official: Draft7Validator) -> None:
    router = Router(group="mail")

    @router.subscribe(ORDERS)
    def mail(order: OrderPlaced) -> None: ...

    @router.subscribe("by.name")
    def count(message: ReceivedMessage) -> None: ...

    app = Txmsg("localhost:1", group="shop", sends=[PAID, ORDERS])
    app.include(router)
    document = app.asyncapi(title="shop", version="1")
    check(document, official)
    assert {name: (each["action"], each["channel"]["$ref"]) for name, each in document["operations"].items()} == {
        "send.paid": ("send", "#/channels/paid"),
        "send.order.placed": ("send", "#/channels/order.placed"),
        "receive.order.placed.mail": ("receive", "#/channels/order.placed"),
        "receive.by.name.mail": ("receive", "#/channels/by.name"),
    }
    assert document["channels"]["by.name"]["messages"] == {}
    assert app.topics == (PAID, ORDERS)


def test_an_invalid_document_is_detected(official: Draft7Validator) -> None:
    document = asyncapi([schema_of(PAID)], title="shop", version="1")
    document["components"]["schemas"]["paid.v3.Paid"]["properties"]["by"]["discriminator"] = {"propertyName": "kind"}
    with pytest.raises(AssertionError, match=r"is not valid under|is not of type 'string'"):
        check(document, official)


def test_annotated_payloads_are_messages_of_their_sender_or_receiver(official: Draft7Validator, tmp_path: Path) -> None:
    app = Txmsg("localhost:1", group="shop", database=create_engine(f"sqlite:///{tmp_path}/a.db"))

    @app.transactional_message("order.placed", key="order_id")
    def place(session: Session, order_id: int, line: Line, note: str | None = None, other: object = None) -> None: ...

    @app.transactional_message(PAID)
    def pay(session: Session, paid: Paid) -> None: ...

    @app.transactional_message("order.built", message=lambda: b"")
    def build(session: Session) -> None: ...

    @app.subscribe("order.placed", "order.moved", group="mailer")
    def mail(order_id: int, note: str = "") -> None: ...

    @app.subscribe("order.placed", group="packer")
    async def pack(orders: ReceivedMessage[OrderPlaced]) -> None: ...

    @app.subscribe("log.*", group="reader", batch=3)
    def read(lines: list[Line]) -> None: ...

    @app.subscribe("order.placed", group="counter")
    def count(message: ReceivedMessage) -> None: ...

    document = app.asyncapi(title="shop", version="1")
    check(document, official)
    channels, schemas = document["channels"], document["components"]["schemas"]
    assert sorted(channels["order.placed"]["messages"]) == ["mailer", "packer", "place"]
    assert sorted(channels["order.moved"]["messages"]) == ["mailer"]
    assert channels["order.built"]["messages"] == {}
    assert [channels["log._"][name] for name in ("address", "messages")] == [
        "log.{rest}",
        {"reader": {"name": "log._.reader", "contentType": "application/json", "payload": {"$ref": LINES}}},
    ]
    sent = schemas["order.placed.place"]
    assert sent["properties"]["order_id"] == {"type": "integer"}
    assert sent["required"] == ["order_id", "line", "note", "other"]
    assert schemas["order.placed.place.line"]["$ref"] == "#/components/schemas/order.placed.place.line.Line"
    mailed = schemas["order.placed.mailer"]
    assert mailed["properties"] == {"order_id": {"type": "integer"}, "note": {"type": "string"}}
    assert mailed["required"] == ["order_id"]
    operations = {name: each["action"] for name, each in document["operations"].items()}
    assert [name for name, action in operations.items() if action == "send"] == [
        "send.order.placed",
        "send.paid",
        "send.order.built",
    ]
    assert app.topics == (PAID,)
    assert channels["paid"]["messages"].keys() == {"v3"}


LINES = "#/components/schemas/log._.reader"


def test_an_application_sends_and_receives_the_same_topic_of_a_union(official: Draft7Validator) -> None:
    app = Txmsg("localhost:1", group="shop", sends=[PAID, PAID])

    @app.subscribe(PAID, ORDERS)
    def mail(event: Paid | OrderPlaced) -> None: ...

    document = app.asyncapi(title="shop", version="1")
    check(document, official)
    assert sorted(document["operations"]) == ["receive.order.placed.shop", "receive.paid.shop", "send.paid"]
    assert document["channels"]["order.placed"]["messages"].keys() == {"v1"}
