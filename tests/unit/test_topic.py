"""Topics with a payload type: sent payloads, read payloads, and refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import msgspec
import pydantic
import pytest

from tests.errors_page import is_documented
from txmsg import InvalidMessage, Message, MisuseError, ReceivedMessage, Topic
from txmsg.errors import InvalidName
from txmsg.message.typed.topic import VERSION_HEADER

ID = UUID("01890000-0000-7000-8000-000000000001")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class OfPydantic(pydantic.BaseModel):
    order_id: UUID
    total: Decimal
    at: datetime
    lines: list[str] = []


@dataclass
class OfDataclass:
    order_id: UUID
    total: Decimal
    at: datetime
    lines: list[str] = field(default_factory=list)


class OfMsgspec(msgspec.Struct):
    order_id: UUID
    total: Decimal
    at: datetime
    lines: list[str] = []


@pydantic.dataclasses.dataclass
class OfPydanticDataclass:
    order_id: UUID
    total: Decimal
    at: datetime
    lines: list[str] = field(default_factory=list)


KINDS: list[Any] = [OfPydantic, OfDataclass, OfMsgspec, OfPydanticDataclass]


def as_received(message: Message) -> ReceivedMessage:
    return ReceivedMessage(message.topic, message.body, headers=message.headers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_round_trips(kind: Any) -> None:
    topic = Topic("order.placed", kind, key="order_id", ordering_key=lambda order: order.at.date(), version=3)
    order = kind(order_id=ID, total=Decimal("1.10"), at=AT, lines=["tea"])
    message = topic.message(order, tag="web", headers={"trace": "1"})
    assert topic.received(as_received(message)).payload == order
    assert json.loads(message.body) == {
        "order_id": str(ID),
        "total": "1.10",
        "at": "2026-01-02T03:04:05Z",
        "lines": ["tea"],
    }
    assert (message.topic, message.key, message.ordering_key, message.tag) == (
        "order.placed",
        str(ID),
        "2026-01-02",
        "web",
    )
    assert message.headers == {"content-type": "application/json", VERSION_HEADER: "3", "trace": "1"}


@pytest.mark.parametrize("kind", KINDS)
def test_json_sent_by_topic_name_is_read(kind: Any) -> None:
    body = b'{"order_id": "%s", "total": "1.10", "at": "2026-01-02T03:04:05+00:00", "old": 1}' % str(ID).encode()
    payload = Topic("order.placed", kind).payload_of(ReceivedMessage("order.placed", body))
    assert payload == kind(order_id=ID, total=Decimal("1.10"), at=AT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'{"total": "secret", "at": "2026-01-02T03:04:05Z", "order_id": "%s"}' % str(ID).encode(), "total"),
        (b'{"total": "1", "at": "2026-01-02T03:04:05Z"}', "order_id"),
        (b'{"total": "1", "at": "2026-01-02T03:04:05Z", "order_id": "secret"}', "order_id"),
        (b"secret", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_an_invalid_payload_is_refused_with_its_location_and_without_its_values(
    kind: Any, body: bytes, where: str
) -> None:
    topic = Topic("order.placed", kind, version=2)
    with pytest.raises(InvalidMessage) as refused:
        topic.received(ReceivedMessage("order.placed", body, headers={VERSION_HEADER: "1"}))
    text = str(refused.value)
    assert f"is not a valid {kind.__name__} (version 2; it was sent as 1)" in text
    assert where in text
    assert "secret" not in text


def test_text_bytes_and_json_objects_are_payloads() -> None:
    texts, files, objects = Topic("t", str), Topic("f", bytes, key=len), Topic("o", dict, key="id")
    assert texts.received(as_received(texts.message("ö"))).payload == "ö"
    assert texts.message("ö").headers["content-type"] == "text/plain; charset=utf-8"
    assert files.received(as_received(files.message(b"\xff"))).payload == b"\xff"
    assert files.message(b"abc").key == "3"
    sent = objects.message({"id": ID, "on": date(2026, 1, 2)})
    assert objects.received(as_received(sent)).payload == {"id": str(ID), "on": "2026-01-02"}
    assert sent.key == str(ID)
    for topic, body in ((texts, b"\xff"), (objects, b"[1]"), (objects, b"[" * 100_000)):
        with pytest.raises(InvalidMessage, match="is not a valid"):
            topic.payload_of(ReceivedMessage("t", body))


@pytest.mark.parametrize(
    ("kind", "content_type", "is_read"),
    [
        (OfDataclass, "Application/JSON", True),
        (OfDataclass, "application/json; charset=utf-8", True),
        (OfDataclass, "application/cloudevents+json", True),
        *((OfDataclass, told, False) for told in ("application/avro", "text/plain", "")),
        *((str, told, told == "text/csv") for told in ("text/csv", "application/json")),
        (bytes, "application/avro", True),
    ],
)  # fmt: skip
def test_only_a_matching_content_type_is_read(kind: Any, content_type: str, is_read: bool) -> None:
    body = Topic("t", OfDataclass).message(OfDataclass(ID, Decimal(1), AT)).body
    message = ReceivedMessage("t", body, headers={"content-type": content_type})
    if is_read:
        assert Topic("t", kind).received(message).payload is not None
    else:
        with pytest.raises(InvalidMessage, match=re.escape(f"is {content_type!r}, not ")):
            Topic("t", kind).received(message)


def test_a_payload_that_readers_would_refuse_is_not_sent() -> None:
    with pytest.raises(InvalidMessage, match=r"not a valid OfDataclass: .*total"):
        Topic("t", OfDataclass).message(OfDataclass(ID, "much", AT))  # type: ignore[arg-type]
    changed = OfPydantic(order_id=ID, total=Decimal(1), at=AT)
    changed.total = "much"  # type: ignore[assignment]
    with pytest.raises(InvalidMessage, match="not a valid OfPydantic: "):
        Topic("t", OfPydantic).message(changed)
    with pytest.raises(InvalidMessage, match="not a valid dict: Out of range float"):
        Topic("t", dict).message({"a": float("nan")})
    with pytest.raises(InvalidMessage, match=r"not a valid str: "):
        Topic("t", str).message("\ud800")
    with pytest.raises(InvalidMessage, match=r"is \{\}, not an OfDataclass"):
        Topic("t", OfDataclass).message({})  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="lacks 'id', its key"):
        Topic("t", dict, key="id").message({})
    with pytest.raises(InvalidMessage, match="the key of topic 't' is a list, which has no short text form"):
        Topic("t", OfDataclass, key="lines").message(OfDataclass(ID, Decimal(1), AT))


def test_delays_and_missing_keys_are_passed_to_the_message() -> None:
    message = Topic("t", dict, key=lambda order: order.get("id")).message({}, deliver_after=timedelta(minutes=1))
    assert message.deliver_after == timedelta(minutes=1)
    assert message.key is None


@pytest.mark.parametrize(("given", "source"), [(True, "/order.placed"), ("https://shop.example/orders", None)])
def test_cloudevents_are_sent_on_request(given: bool | str, source: str | None) -> None:
    topic = Topic("order.placed", str, cloudevents=given)
    first, second = topic.message("a").headers, topic.message("b").headers
    assert first["ce_specversion"] == "1.0"
    assert first["ce_type"] == "order.placed"
    assert first["ce_source"] == source or given
    assert first["ce_id"] != second["ce_id"]
    assert abs(datetime.fromisoformat(first["ce_time"]) - datetime.now(UTC)) < timedelta(minutes=5)
    assert not [name for name in Topic("t", str).message("a").headers if name.startswith("ce_")]


class WithoutJson:
    pass


@dataclass
class OfWithoutJson:
    what: complex


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: Topic("a b", str), InvalidName, "topic 'a b' is not a valid name"),
        (lambda: Topic("t", int), MisuseError, "is not a type of payloads"),
        (lambda: Topic("t", cast(Any, "OrderPlaced")), MisuseError, "is not a type of payloads"),
        (lambda: Topic("t", WithoutJson), MisuseError, "is not a type of payloads"),
        (lambda: Topic("t", list[int]), MisuseError, "is not a type of payloads"),
        (lambda: Topic("t", OfPydantic, key="id"), MisuseError, "there are order_id, total, at, lines;"),
        (lambda: Topic("t", OfDataclass, ordering_key="id"), MisuseError, "there are order_id, total, at, lines;"),
        (lambda: Topic("t", str, key="id"), MisuseError, "there are none; give one"),
        (lambda: Topic("t", OfMsgspec, key=cast(Any, 1)), MisuseError, "must be the name of a field or a function"),
        (lambda: Topic("t", str, version=0), MisuseError, "must be a whole number from 1 on"),
        (lambda: Topic("t", str, version=True), MisuseError, "must be a whole number from 1 on"),
        (lambda: Topic("t", str, cloudevents=""), MisuseError, "must be True, False, or the source"),
    ],
)  # fmt: skip
def test_an_invalid_topic_declaration_is_refused_at_construction(
    wrong: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)) as refused:
        wrong()
    assert is_documented(refused.value)


def test_a_type_without_json_is_named() -> None:
    with pytest.raises(MisuseError, match="payloads of type OfWithoutJson have no JSON"):
        Topic("t", OfWithoutJson)


def test_pydantic_and_msgspec_are_loaded_only_when_needed() -> None:
    program = (
        "import sys; from txmsg import Topic; Topic('t', dict).message({}); "
        "assert not {'pydantic', 'msgspec'} & sys.modules.keys(); "
        "from dataclasses import make_dataclass; sys.modules['msgspec'] = None\n"
        "try: Topic('t', make_dataclass('Order', ['id']))\n"
        "except Exception as exc: print(type(exc).__name__, exc)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("MisuseError a topic of the dataclass Order needs the package msgspec: pip install")
