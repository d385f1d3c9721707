"""Conversion of messages, tags, ids and handles of RocketMQ clients."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable
from datetime import timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from txmsg.errors import DuplicateId
from txmsg.message import ReceivedMessage, datetime_of_us
from txmsg.rocketmq.codec import delivered_message, message_of
from txmsg.rocketmq.filters import wanted_of
from txmsg.rocketmq.ids import Handle, id_of, transaction_of_id, usual_id
from txmsg.rocketmq.limits import BODY_SIZE_BYTES_MAX
from txmsg.rocketmq.status import CallRefused, status_of
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.tags import parse_tags

_NOW_US = 1_800_000_000_000_000
_ID = usual_id(bytes(range(16)))


def _sent(kind: pb.MessageType = pb.NORMAL, body: bytes = b"{}", **properties: object) -> pb.Message:
    made = pb.SystemProperties(**{"message_id": _ID, "message_type": kind, **properties})  # type: ignore[arg-type]
    return pb.Message(topic=pb.Resource(name="orders"), system_properties=made, body=body)


_TAG_CHARACTERS = st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="|")


@given(st.text(_TAG_CHARACTERS, min_size=1, max_size=10).map(str.strip).filter(lambda tag: tag not in ("", "*")))
def test_a_tag_may_have_any_characters(tag: str) -> None:
    assert message_of(_sent(tag=tag), _NOW_US).tag == tag


@given(st.lists(st.sampled_from(["paid", "new 订单", ".5", "-x", "50%"]), min_size=1, unique=True))
def test_a_filter_matches_the_tags_that_it_names(tags: list[str]) -> None:
    wanted = wanted_of(pb.FilterExpression(type=pb.TAG, expression=" || ".join(tags) + "|| "))
    assert parse_tags(wanted.tags).tags == frozenset(tags)


@pytest.mark.parametrize("text", ["", " ", "*"])
def test_a_filter_without_tags_matches_all(text: str) -> None:
    assert wanted_of(pb.FilterExpression(type=pb.TAG, expression=text)).tags == "*"


@pytest.mark.parametrize("text", ["||", "a | b", "a && b", "* || a"])
def test_an_invalid_filter_is_refused(text: str) -> None:
    with pytest.raises(CallRefused, match="tag expression") as refused:
        wanted_of(pb.FilterExpression(type=pb.TAG, expression=text))
    assert refused.value.code == pb.ILLEGAL_FILTER_EXPRESSION


def test_an_sql_filter_sees_properties_tag_and_keys_and_locates_errors() -> None:
    sent = _sent(tag="new 订单", keys=["k1", "k2"])
    sent.user_properties.update({"region": "eu", "n": "5"})
    message = message_of(sent, _NOW_US)
    received = ReceivedMessage("orders", b"", key=message.key, tag=message.tag, headers=message.headers)
    text = "region = 'eu' AND n BETWEEN 1 AND 9 AND TAGS = 'new 订单' AND KEYS CONTAINS 'k2'"
    wanted = wanted_of(pb.FilterExpression(type=pb.SQL, expression=text))
    assert wanted.tags == "*"
    assert wanted.takes(received)
    assert not wanted.takes(ReceivedMessage("orders", b""))
    with pytest.raises(CallRefused, match="at character 5") as refused:
        wanted_of(pb.FilterExpression(type=pb.SQL, expression="a > 'x'"))
    assert refused.value.code == pb.ILLEGAL_FILTER_EXPRESSION


@given(st.text(min_size=1, max_size=60))
def test_a_message_id_round_trips_and_is_unique(given_id: str) -> None:
    if not given_id.strip() or "\0" in given_id:
        return
    made = message_of(_sent(message_id=given_id), _NOW_US)
    id_bytes = transaction_of_id(given_id)
    assert id_of(ReceivedMessage("orders", b"", headers=made.headers, id_bytes=id_bytes)) == given_id
    assert transaction_of_id(given_id) == id_bytes


def test_message_ids_are_case_insensitive() -> None:
    assert transaction_of_id(_ID.lower()) == transaction_of_id(_ID) == bytes(range(16))


_UINT64 = st.integers(0, 2**64 - 1)


@given(st.integers(0, 2**32 - 1), _UINT64, _UINT64, st.booleans(), st.text(min_size=1))
def test_a_receipt_handle_round_trips(queue_id: int, token: int, offset: int, is_renewed: bool, broker: str) -> None:
    handle = Handle(broker, queue_id, token, 7, offset, is_renewed)
    assert Handle.parse(str(handle)) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1.2.3.4s",
        "1.2.3.4s@",
        "1.2.3.4@b",
        "1.2.3.4x@b",
        f"{2**32}.1.1.1s@b",
        f"1.1.1.{2**64}p@b",
        f"{'9' * 9999}.1.1.1s@b",
    ],
)
def test_an_invalid_receipt_handle_is_refused(text: str) -> None:
    with pytest.raises(CallRefused) as refused:
        Handle.parse(text)
    assert refused.value.code == pb.INVALID_RECEIPT_HANDLE


def test_a_message_round_trips() -> None:
    sent = _sent(pb.FIFO, tag="a b", keys=["k", "l"], message_group="g", born_host="h", trace_context="t", priority=3)
    sent.user_properties["region"] = "eu"
    made = message_of(sent, _NOW_US)
    received = ReceivedMessage(
        "orders", made.body, made.key, made.tag, made.headers, 2, 5, 3, bytes(range(16)), 0, _NOW_US, _NOW_US,
        made.ordering_key,
    )  # fmt: skip
    back = delivered_message(received, Handle("b:1", 1, 2, 3, 5, False), 30)
    assert dict(back.user_properties) == {"region": "eu", "__SHARDINGKEY": "g"}
    kept = ("tag", "keys", "message_id", "message_type", "message_group", "born_host", "trace_context", "priority")
    for name in kept:
        assert getattr(back.system_properties, name) == getattr(sent.system_properties, name)
    assert (back.system_properties.queue_offset, back.system_properties.delivery_attempt) == (5, 3)
    assert back.system_properties.body_digest.checksum == hashlib.md5(b"{}").hexdigest().upper()


def test_a_half_carries_its_transaction_id_to_consumers_and_checkers() -> None:
    made = message_of(_sent(pb.TRANSACTION), _NOW_US)
    received = ReceivedMessage("orders", made.body, headers=made.headers, id_bytes=bytes(range(16)))
    assert dict(delivered_message(received, None, 0).user_properties) == {"__transactionId__": _ID}


def test_a_delayed_message_carries_its_requested_delivery_time() -> None:
    sent = _delivered_at(_NOW_US // 1_000_000 + 60)
    sent.system_properties.delivery_timestamp.nanos = 123_456_000
    made = message_of(sent, _NOW_US)
    assert made.deliver_at == datetime_of_us(_NOW_US + 60_123_456)
    back = delivered_message(ReceivedMessage("orders", made.body, headers=made.headers), None, 0)
    assert not back.user_properties
    assert back.system_properties.message_type == pb.DELAY
    assert back.system_properties.delivery_timestamp == sent.system_properties.delivery_timestamp


def test_a_key_with_blanks_is_several_keys_and_an_empty_one_is_none() -> None:
    made = message_of(_sent(keys=["", "a b", "c"], tag="", message_group=""), _NOW_US)
    assert (made.key, made.tag, made.ordering_key) == ("a", None, None)
    received = ReceivedMessage("orders", b"x", made.key, None, made.headers)
    assert delivered_message(received, None, 0).system_properties.keys == ["a", "b", "c"]


def _zipped(*parts: bytes) -> bytes:
    return b"".join(gzip.compress(part, mtime=0) for part in parts)


@pytest.mark.parametrize("parts", [[b"hello"], [b"he", b"", b"llo"], [*[b""] * 63, b"hello"]])
def test_a_compressed_body_is_stored_uncompressed(parts: list[bytes]) -> None:
    assert message_of(_sent(body=_zipped(*parts), body_encoding=pb.GZIP), _NOW_US).body == b"hello"


def test_a_reused_message_id_is_refused_as_a_sender_error() -> None:
    assert status_of(DuplicateId("used before")).code == pb.ILLEGAL_MESSAGE_ID


@pytest.mark.parametrize(
    ("digest", "of"),
    [
        (pb.CRC32, lambda body: f"{zlib.crc32(body):08x}"),
        (pb.MD5, lambda body: hashlib.md5(body).hexdigest()),
        (pb.SHA1, lambda body: hashlib.sha1(body).hexdigest()),
    ],
)
def test_digests_are_compared(digest: pb.DigestType, of: Callable[[bytes], str]) -> None:
    message_of(_sent(body=b"a", body_digest=pb.Digest(type=digest, checksum=of(b"a"))), _NOW_US)
    with pytest.raises(CallRefused) as refused:
        message_of(_sent(body=b"b", body_digest=pb.Digest(type=digest, checksum=of(b"a"))), _NOW_US)
    assert refused.value.code == pb.MESSAGE_CORRUPTED


def _delivered_at(seconds: int) -> pb.Message:
    made = _sent(pb.DELAY)
    made.system_properties.delivery_timestamp.seconds = seconds
    return made


def _first_checked(kind: pb.MessageType = pb.TRANSACTION, **duration: int) -> pb.Message:
    made = _sent(kind)
    made.system_properties.orphaned_transaction_recovery_duration.CopyFrom(Duration(**duration))
    return made


def _with_properties(properties: dict[str, str], **system: object) -> pb.Message:
    sent = _sent(**system)  # type: ignore[arg-type]
    sent.user_properties.update(properties)
    return sent


_ZEROS = bytes(BODY_SIZE_BYTES_MAX)


@pytest.mark.parametrize(
    "sent",
    [
        _sent(body=_ZEROS),
        _sent(body=_zipped(_ZEROS), body_encoding=pb.GZIP),
        _sent(pb.FIFO, message_group="g" * 63),
        _sent(pb.FIFO, message_group="订 单"),
        _sent(keys=["k" * 512, "l" * 1000]),
        _sent(message_id="x" * 255),
        _sent(tag="订" * 127),
        _with_properties({str(n): "x" for n in range(128)}),
        _with_properties({"a": "x" * (16 * 1024 - 6)}, tag="tag", keys=["k", "l"]),
        _with_properties({"": ""}),
        _delivered_at(_NOW_US // 1_000_000 - 1),  # a past time means now
        _delivered_at(_NOW_US // 1_000_000 + 366 * 86_400),
    ],
)
def test_values_at_a_limit_are_accepted(sent: pb.Message) -> None:
    assert message_of(sent, _NOW_US).topic == "orders"


@pytest.mark.parametrize(
    ("sent", "code", "named"),
    [
        (_sent(body=b""), pb.MESSAGE_BODY_EMPTY, "body"),
        (_sent(body=_zipped(b"", b""), body_encoding=pb.GZIP), pb.MESSAGE_BODY_EMPTY, "body"),
        (_sent(body=_ZEROS + b"x"), pb.MESSAGE_BODY_TOO_LARGE, "body"),
        (_sent(body=_zipped(_ZEROS + b"x"), body_encoding=pb.GZIP), pb.MESSAGE_BODY_TOO_LARGE, "body"),
        (_sent(body=_zipped(_ZEROS, b"x"), body_encoding=pb.GZIP), pb.MESSAGE_BODY_TOO_LARGE, "body"),
        (_sent(body=_zipped(b"hello")[:-9], body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED, "body"),
        (_sent(body=_zipped(b"a", b"b")[:-9], body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED, "body"),
        (_sent(body=_zipped(b"a") + b"plain", body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED, "body"),
        (_sent(body=_zipped(*[b"a"] * 65), body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED, "body"),
        (_sent(body=b"plain", body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED, "body"),
        (_sent(pb.FIFO), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "message group"),
        (_sent(pb.FIFO, message_group=""), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "message group"),
        (_sent(pb.TRANSACTION, message_group="g"), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "message group"),
        (_sent(pb.DELAY), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "delivery timestamp"),
        (_sent(pb.LITE), pb.UNSUPPORTED, "type"),
        (_sent(pb.FIFO, message_group="g" * 64), pb.ILLEGAL_MESSAGE_GROUP, "message group"),
        (_sent(pb.FIFO, message_group="订" * 22), pb.ILLEGAL_MESSAGE_GROUP, "message group"),
        (_sent(pb.FIFO, message_group="  "), pb.ILLEGAL_MESSAGE_GROUP, "message group"),
        (_sent(pb.FIFO, message_group="a\tb"), pb.ILLEGAL_MESSAGE_GROUP, "message group"),
        (_delivered_at(_NOW_US // 1000), pb.ILLEGAL_DELIVERY_TIME, "delivery timestamp"),  # milliseconds for seconds
        (_delivered_at(_NOW_US // 1_000_000 + 366 * 86_400 + 1), pb.ILLEGAL_DELIVERY_TIME, "delivery timestamp"),
        (_delivered_at(-1), pb.ILLEGAL_DELIVERY_TIME, "delivery timestamp"),
        (_delivered_at(2**62), pb.ILLEGAL_DELIVERY_TIME, "delivery timestamp"),
        (_first_checked(seconds=3600, nanos=1), pb.BAD_REQUEST, "first check 3600 s after"),
        (_first_checked(seconds=-1), pb.BAD_REQUEST, "first check -1 s after"),
        (_first_checked(seconds=2**62), pb.BAD_REQUEST, "first check"),
        (_with_properties({"CHECK_IMMUNITY_TIME_IN_SECONDS": "3601"}, kind=pb.TRANSACTION), pb.BAD_REQUEST, "3601 s"),
        (_with_properties({"CHECK_IMMUNITY_TIME_IN_SECONDS": "9" * 400}, kind=pb.TRANSACTION), pb.BAD_REQUEST, "inf"),
        (_sent(tag=" "), pb.ILLEGAL_MESSAGE_TAG, "tag"),
        (_sent(tag="paid "), pb.ILLEGAL_MESSAGE_TAG, "tag"),
        (_sent(tag="*"), pb.ILLEGAL_MESSAGE_TAG, "tag"),
        (_sent(tag="a|b"), pb.ILLEGAL_MESSAGE_TAG, "tag"),
        (_sent(tag="a\x7f"), pb.ILLEGAL_MESSAGE_TAG, "tag"),
        (_sent(tag="t" * 128), pb.ILLEGAL_MESSAGE_TAG, "tag"),
        (_sent(keys=[" "]), pb.ILLEGAL_MESSAGE_KEY, "key"),
        (_sent(keys=["a", "b\n"]), pb.ILLEGAL_MESSAGE_KEY, "key"),
        (_sent(keys=["k" * 513]), pb.ILLEGAL_MESSAGE_KEY, "key"),
        (_sent(message_id=""), pb.ILLEGAL_MESSAGE_ID, "message id"),
        (_sent(message_id="  "), pb.ILLEGAL_MESSAGE_ID, "message id"),
        (_sent(message_id="x" * 256), pb.ILLEGAL_MESSAGE_ID, "message id"),
        (pb.Message(topic=pb.Resource(name="a/b"), system_properties=_sent().system_properties, body=b"x"),
         pb.ILLEGAL_TOPIC, "topic"),
        (pb.Message(topic=pb.Resource(name="a", resource_namespace="n"), system_properties=_sent().system_properties,
                    body=b"x"), pb.ILLEGAL_TOPIC, "namespace"),
        (_with_properties({"rocketmq.id": "x"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "rocketmq.id"),
        (_with_properties({"TAGS": "x"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "TAGS"),
        (_with_properties({"a\n": "x"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "property"),
        (_with_properties({"region": "x\x85"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "region"),
        (_with_properties({str(n): "x" for n in range(129)}), pb.MESSAGE_PROPERTIES_TOO_LARGE, "129 properties"),
        (_with_properties({"a": "x" * (16 * 1024)}), pb.MESSAGE_PROPERTIES_TOO_LARGE, "properties"),
        (_with_properties({"a": "x" * (16 * 1024 - 6)}, tag="tags", keys=["k", "l"]),
         pb.MESSAGE_PROPERTIES_TOO_LARGE, "tag"),
    ],
)  # fmt: skip
def test_an_invalid_message_is_refused_with_the_rocketmq_code(sent: pb.Message, code: pb.Code, named: str) -> None:
    with pytest.raises(CallRefused, match=named) as refused:
        message_of(sent, _NOW_US)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("sent", "after"),
    [
        (_sent(pb.TRANSACTION), None),
        (_first_checked(seconds=1, nanos=500_000_000), timedelta(seconds=1.5)),
        (_first_checked(), timedelta(0)),
        (_first_checked(seconds=3600), timedelta(hours=1)),
        (_first_checked(pb.NORMAL, seconds=9999), None),  # never checked
        (_with_properties({"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, kind=pb.TRANSACTION), timedelta(minutes=1)),
        (_with_properties({"CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"}, kind=pb.TRANSACTION), None),
        (_with_properties({"CHECK_IMMUNITY_TIME_IN_SECONDS": "1m"}, kind=pb.TRANSACTION), None),
    ],
)
def test_a_field_or_a_property_sets_the_first_check_of_a_half(sent: pb.Message, after: timedelta | None) -> None:
    assert message_of(sent, _NOW_US).first_check_after == after


def test_invalid_txmsg_headers_do_not_prevent_delivery() -> None:
    forged = {"rocketmq.priority": "9" * 20, "rocketmq.deliver-at": "9" * 17, "rocketmq.keys": "a"}
    message = ReceivedMessage("orders", b"x", headers=forged)
    back = delivered_message(message, None, 0)
    assert not back.system_properties.HasField("priority")
    assert not back.system_properties.HasField("delivery_timestamp")
