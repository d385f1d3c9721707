"""Converts messages between RocketMQ and txmsg; docs/how-to/rocketmq.md has the table. Pure."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from txmsg.errors import InvalidName
from txmsg.message import DELAY_MAX, Message, ReceivedMessage, check_name, check_tag, datetime_of_us
from txmsg.rocketmq.ids import ID_HEADER, Handle, id_of, transaction_of_id, usual_id
from txmsg.rocketmq.limits import (
    BODY_SIZE_BYTES_MAX,
    FIRST_CHECK_S_MAX,
    OWN_HEADERS,
    check_group,
    check_properties,
    words_of_keys,
)
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.unpacking import Unpackable, unzipped

KEYS_HEADER: Final = f"{OWN_HEADERS}keys"
BORN_HOST_HEADER: Final = f"{OWN_HEADERS}born-host"
TRACE_HEADER: Final = f"{OWN_HEADERS}trace-context"
PRIORITY_HEADER: Final = f"{OWN_HEADERS}priority"
DELIVERY_HEADER: Final = f"{OWN_HEADERS}deliver-at"
"""The header with the delivery time that the sender requested, in microseconds since 1970."""
TRANSACTION_HEADER: Final = f"{OWN_HEADERS}transaction"
"""The header of a message that was a half: "1"."""

FIRST_CHECK_PROPERTY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""The property of a half message with the whole seconds until its first check."""

_GROUP_PROPERTY: Final = "__SHARDINGKEY"
_TRANSACTION_PROPERTY: Final = "__transactionId__"
"""Properties that RocketMQ shows to consumers beside the sender's."""

_DIGESTS: Mapping[pb.DigestType, Callable[[bytes], str]] = {
    pb.CRC32: lambda body: f"{zlib.crc32(body):X}",
    pb.MD5: lambda body: hashlib.md5(body, usedforsecurity=False).hexdigest().upper(),
    pb.SHA1: lambda body: hashlib.sha1(body, usedforsecurity=False).hexdigest().upper(),
}
_INT32_MAX: Final = 2**31 - 1
_TIME_DIGITS_MAX: Final = 16
"""Maximum digits of microseconds since 1970, for some centuries."""


def topic_of(resource: pb.Resource) -> str:
    """Return the name of a topic. Raises CallRefused."""
    return _name_of("topic", resource, pb.ILLEGAL_TOPIC)


def group_of(resource: pb.Resource) -> str:
    """Return the name of a consumer group. Raises CallRefused."""
    return _name_of("consumer group", resource, pb.ILLEGAL_CONSUMER_GROUP)


def _name_of(what: str, resource: pb.Resource, code: pb.Code) -> str:
    if resource.resource_namespace:
        raise CallRefused(
            code,
            f"{what} {resource.name!r} is in namespace {resource.resource_namespace!r}: there are none here, so leave "
            "it out of the client's configuration, and put it into the name if you need it",
        )
    try:
        return check_name(what, resource.name)
    except InvalidName as exc:
        raise CallRefused(code, str(exc)) from None


def message_of(sent: pb.Message, now_us: int) -> Message:
    """Return the message to store. Raises CallRefused, with RocketMQ's code, and InvalidMessage."""
    properties = sent.system_properties
    group = properties.message_group or None  # the empty text is none, as in RocketMQ; so are those below
    deliver_at_us = _deliver_at_us(properties, now_us)
    _check_type(properties.message_type, group, deliver_at_us)
    keys = words_of_keys(properties.keys)
    return Message(
        topic_of(sent.topic),
        _body_of(sent),
        key=keys[0] if keys else None,
        tag=_tag_of(properties),
        headers=_headers_of(sent, keys, deliver_at_us),
        ordering_key=group,
        deliver_at=None if deliver_at_us is None else datetime_of_us(deliver_at_us),
        first_check_after=_first_check_after(sent) if properties.message_type == pb.TRANSACTION else None,
    )


def _tag_of(properties: pb.SystemProperties) -> str | None:
    try:
        return check_tag(properties.tag) if properties.tag else None
    except InvalidName as exc:
        raise CallRefused(pb.ILLEGAL_MESSAGE_TAG, str(exc)) from None


def _first_check_after(sent: pb.Message) -> timedelta | None:
    """Return the field's value, or the property's, which is the one that applications can set with the official
    clients.
    """
    properties = sent.system_properties
    if properties.HasField("orphaned_transaction_recovery_duration"):
        after_s = float(properties.orphaned_transaction_recovery_duration.seconds)
        after_s += properties.orphaned_transaction_recovery_duration.nanos / 1e9
    else:
        told = sent.user_properties.get(FIRST_CHECK_PROPERTY, "")
        if not (told.isascii() and told.isdecimal()):
            return None  # as in RocketMQ
        after_s = float(told)
    if not 0 <= after_s <= FIRST_CHECK_S_MAX:
        raise CallRefused(
            pb.BAD_REQUEST,
            f"a first check {after_s:g} s after the half message: 0 s to {FIRST_CHECK_S_MAX} s are allowed "
            f"({FIRST_CHECK_PROPERTY}, or orphaned_transaction_recovery_duration)",
        )
    return timedelta(seconds=after_s)


def _check_type(kind: pb.MessageType, group: str | None, deliver_at_us: int | None) -> None:
    if kind not in (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION):
        raise CallRefused(
            pb.UNSUPPORTED, f"messages of type {kind} are not supported: send NORMAL, FIFO, DELAY or TRANSACTION"
        )
    if (kind == pb.FIFO) != (group is not None):
        raise CallRefused(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a message has a message group if, and only if, its type is FIFO"
        )
    if (kind == pb.DELAY) != (deliver_at_us is not None):
        raise CallRefused(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "a message has a delivery timestamp if, and only if, its type is DELAY",
        )
    if group is not None:
        check_group(group)


def _deliver_at_us(properties: pb.SystemProperties, now_us: int) -> int | None:
    if not properties.HasField("delivery_timestamp"):
        return None
    seconds = properties.delivery_timestamp.seconds  # of any client: do not trust Timestamp's own range
    at_us = seconds * 1_000_000 + properties.delivery_timestamp.nanos // 1000
    if not 0 <= at_us <= now_us + DELAY_MAX.total_seconds() * 1_000_000:
        raise CallRefused(
            pb.ILLEGAL_DELIVERY_TIME,
            f"a delivery timestamp of {seconds} seconds since 1970 is none of the next {DELAY_MAX.days} days: are "
            "these milliseconds?",
        )
    return at_us


def _body_of(sent: pb.Message) -> bytes:
    properties, body = sent.system_properties, sent.body
    if properties.HasField("body_digest") and properties.body_digest.type in _DIGESTS:
        digest = _DIGESTS[properties.body_digest.type](body)
        told = properties.body_digest.checksum.upper()
        if told.lstrip("0") != digest.lstrip("0"):
            raise CallRefused(pb.MESSAGE_CORRUPTED, f"the digest of the body is {digest}, and the sender's is {told}")
    if properties.body_encoding == pb.GZIP:
        try:
            body = unzipped(body, BODY_SIZE_BYTES_MAX)
        except Unpackable as exc:
            raise CallRefused(pb.MESSAGE_CORRUPTED, f"the body cannot be unzipped: {exc}") from None
    if not body:
        raise CallRefused(pb.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(body) > BODY_SIZE_BYTES_MAX:
        raise CallRefused(
            pb.MESSAGE_BODY_TOO_LARGE, f"a body of {len(body)} bytes: at most {BODY_SIZE_BYTES_MAX} are allowed"
        )
    return body


def _headers_of(sent: pb.Message, keys: Sequence[str], deliver_at_us: int | None) -> dict[str, str]:
    properties = sent.system_properties
    headers = dict(sent.user_properties)
    check_properties(headers, properties.tag, keys)
    if len(keys) > 1:
        headers[KEYS_HEADER] = " ".join(keys)
    if properties.message_type == pb.TRANSACTION:
        headers[TRANSACTION_HEADER] = "1"
    if properties.message_id != usual_id(transaction_of_id(properties.message_id)):
        headers[ID_HEADER] = properties.message_id
    if properties.born_host:
        headers[BORN_HOST_HEADER] = properties.born_host
    if properties.trace_context:
        headers[TRACE_HEADER] = properties.trace_context
    if properties.HasField("priority"):
        headers[PRIORITY_HEADER] = str(properties.priority)
    if deliver_at_us is not None:
        headers[DELIVERY_HEADER] = str(deliver_at_us)
    return headers


def delivered_message(message: ReceivedMessage, handle: Handle | None, invisible_s: float) -> pb.Message:
    """Return the message that a consumer gets. handle: None for a check."""
    headers = message.headers
    properties = pb.SystemProperties(
        keys=keys_of(message),
        message_id=id_of(message),
        body_digest=pb.Digest(type=pb.MD5, checksum=_DIGESTS[pb.MD5](message.body)),
        body_encoding=pb.IDENTITY,
        message_type=pb.NORMAL if message.ordering_key is None else pb.FIFO,
        born_timestamp=_timestamp(message.born_at_us),
        born_host=headers.get(BORN_HOST_HEADER, ""),
        store_timestamp=_timestamp(message.stored_at_us),
        delivery_attempt=message.attempt,
    )
    if message.tag is not None:
        properties.tag = message.tag
    if message.ordering_key is not None:
        properties.message_group = message.ordering_key
    if TRACE_HEADER in headers:
        properties.trace_context = headers[TRACE_HEADER]
    if (priority := headers.get(PRIORITY_HEADER, "")).isdecimal() and len(priority) < len(str(_INT32_MAX)):
        properties.priority = int(priority)
    if (deliver_at_us := headers.get(DELIVERY_HEADER, "")).isdecimal() and len(deliver_at_us) <= _TIME_DIGITS_MAX:
        properties.message_type = pb.DELAY
        properties.delivery_timestamp.CopyFrom(_timestamp(int(deliver_at_us)))
    if handle is not None:
        properties.receipt_handle = str(handle)
        properties.queue_id = message.queue or 0
        properties.queue_offset = message.offset or 0
        properties.invisible_duration.FromMilliseconds(round(invisible_s * 1000))
    return pb.Message(
        topic=pb.Resource(name=message.topic),
        user_properties=properties_of(message),
        system_properties=properties,
        body=message.body,
    )


def properties_of(message: ReceivedMessage) -> dict[str, str]:
    """Return the properties that RocketMQ's consumers see."""
    properties = {name: value for name, value in message.headers.items() if not name.startswith(OWN_HEADERS)}
    if message.ordering_key is not None:
        properties[_GROUP_PROPERTY] = message.ordering_key
    if TRANSACTION_HEADER in message.headers:
        properties[_TRANSACTION_PROPERTY] = id_of(message)
    return properties


def keys_of(message: ReceivedMessage) -> list[str]:
    """Return all keys of a message; txmsg itself knows only the first."""
    if KEYS_HEADER in message.headers:
        return message.headers[KEYS_HEADER].split(" ")
    return [message.key] if message.key else []


def _timestamp(us: int) -> Timestamp:
    return Timestamp(seconds=us // 1_000_000, nanos=us % 1_000_000 * 1000)
