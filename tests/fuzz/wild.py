"""Random requests: messages of the protocol with edge values in their fields, and damaged bytes.

Built from the protocol's own messages, so a method or field that is added is fuzzed without a word here. Random
bytes alone would end in the protobuf parser; these get past it, most of them past the validation of whole requests too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as Proto
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.methods import Part, every_method, parts_of, unchecked
from txmsg.message import BODY_SIZE_BYTES_MAX, now_us
from txmsg.wire.codec import pack_headers
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify

ID_PREFIX = UUID("0197f3a2-8d5e-7c11-b0a4-000000000000").bytes[:10]
"""Replaced now and then by a target in the bytes of a request: else all ids would soon be known and decided."""
IDS = [ID_PREFIX + bytes([0, 0, 0, 0, 0, n]) for n in range(12)]
"""Few ids, so that repeats, conflicts and late copies happen."""
_PLAIN_IDS = [ID_PREFIX + bytes([1, 0, 0, 0, 0, n]) for n in range(12)]
TOPICS = ["orders", "t", "a.b-c_d%25"]
GROUPS = ["shop", "mail"]
_NAMES = ["x" * 127, "x" * 128, "y" * 70_000, "", " ", "-x", "a b", "a\n", "\0", "ü", "\U0001f600", "*"]
_TAGS = ["", "*", "a", "a || b", "a||", "||", "|| |", "a | b", "* || a", "\0", "z" * 127, "q" * 99_999, "a||" * 30_000]
_ODD = ["\u2028", "\ufeff", "%s%d%n", "'; drop table txmsg.message; --", "{}", "k" * 512, "k" * 513, "ü" * 257]
_NOW_US = 1_790_000_000_000_000
_SOON_US = now_us() + 10**9
_LAST_US = 253_402_300_799_000_000

_UINT32 = st.sampled_from([0, 1, 2, 3, 999, 1000, 32_767, 32_768, 2**31 - 1, 2**31, 2**32 - 1])
_UINT64 = st.sampled_from([0, 1, 2, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1])
_SINT64 = st.sampled_from([-(2**63), -(2**31), -1, 0, 1, _NOW_US, _LAST_US, _LAST_US + 1, 2**63 - 1])
_NAME = st.sampled_from([*TOPICS, *GROUPS, *_NAMES])
_TEXT = st.sampled_from([*_TAGS, *_ODD]) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_ID = st.sampled_from(IDS)
_IDS = st.lists(_ID, max_size=4).map(b"".join)
_PACKED = st.dictionaries(_TEXT, _TEXT, max_size=3).map(pack_headers)
_HEADERS = _PACKED | st.binary(max_size=40) | st.just(b"\n\4\n\0\22\0")
_BYTES = _IDS | st.binary(max_size=40) | _HEADERS
_BODY = st.binary(max_size=30) | st.just(b"b" * 100_000)


def _mostly(good: SearchStrategy[Any], bad: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Valid nine times in ten: a request with only invalid parts is refused for the first."""
    return st.integers(0, 9).flatmap(lambda roll: bad if roll == 0 else good)


_TYPES: dict[int, SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: _BYTES,
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from([0.0, 1.0, -1.0, 1e300, math.inf, -math.inf, math.nan]),
    FieldDescriptor.TYPE_ENUM: st.sampled_from([0, 1, 2, 3, -1, 2**31 - 1]),
    FieldDescriptor.TYPE_STRING: _TEXT | _NAME,
    FieldDescriptor.TYPE_UINT32: _UINT32,
    FieldDescriptor.TYPE_UINT64: _UINT64,
    FieldDescriptor.TYPE_SINT64: _SINT64,
}
_JSON_TYPES: dict[Any, SearchStrategy[Any]] = {
    bool: st.booleans(),
    bytes: _BYTES,
    float: _TYPES[FieldDescriptor.TYPE_DOUBLE],
    str: _TEXT | _NAME,
    int: _UINT32 | _UINT64 | _SINT64,
    UUID: st.sampled_from(IDS).map(lambda each: str(UUID(bytes=each))) | _TEXT,
    datetime: st.sampled_from(["2026-05-01T10:00:00Z", "2026-05-01", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59Z"]),
    Any: _TEXT,
}
_FIELDS: dict[str, SearchStrategy[Any]] = {
    "born_at_us": _mostly(st.just(_NOW_US), _SINT64),
    "client_id": _mostly(st.sampled_from(["c1", "c2"]), _TEXT),
    "commit": _IDS,
    "fence_id": st.sampled_from([b"", IDS[0]]) | st.binary(max_size=20),
    "group": _mostly(st.sampled_from(GROUPS), _NAME),
    "shard": st.just(b"") | st.binary(max_size=17),
    "rollback": _IDS,
    "tags": st.just("*") | _TEXT,
    "topic": _mostly(st.sampled_from(TOPICS), _NAME),
    "transaction_id": _mostly(_ID, _BYTES),
    "transaction_ids": _mostly(_IDS, _BYTES),
    "unknown": _IDS,
    "wait_ms": st.sampled_from([0, 1, 20]) | _UINT32,
}


@dataclass(frozen=True, slots=True)
class Pick:
    """A receipt that the broker has really issued: the `slot`-th one remembered, after `change`.

    refuse_delay_ms None: it is acknowledged, else refused.
    """

    slot: int
    change: str
    refuse_delay_ms: int | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call: its method and the bytes of its request, to which picked receipts are added."""

    method: str
    request: bytes
    picks: tuple[Pick, ...] = ()


def wild(kind: Any) -> SearchStrategy[Any]:
    """Messages of a type. Each field is absent, or has one of the edge values of its name or type.

    Of a dataclass as JSON has it: its fields may have what they cannot.
    """

    def value_of(part: Part) -> SearchStrategy[Any]:
        if part.is_message:
            return st.deferred(lambda: wild(part.kind))
        if part.choices:
            return _mostly(st.sampled_from(list(part.choices)), _TEXT)
        of_type = _TYPES[part.number] if part.number else _JSON_TYPES[part.kind]
        is_named = part.kind is not bool and (part.number or part.kind is str)
        return _FIELDS.get(part.name, of_type) if is_named else of_type

    def values_of(part: Part) -> SearchStrategy[Any]:
        if part.is_map:
            return st.dictionaries(_TEXT, value_of(part), max_size=4)
        return st.lists(value_of(part), max_size=4) if part.is_list else value_of(part)

    parts = {part.name: values_of(part) for part in parts_of(kind).values()}
    values = st.fixed_dictionaries({}, optional=parts)
    return values if is_dataclass(kind) else values.map(lambda each: _made(kind, each))


def _made(kind: Callable[..., Proto], values: dict[str, Any]) -> Proto:
    chosen = kind()
    for name, value in values.items():  # of a oneof the last one stands
        chosen.MergeFrom(kind(**{name: value}))
    return chosen


@st.composite
def _columns(draw: DrawFn, ids: Sequence[bytes]) -> pb.MessageColumns:
    """Columns of one length, as a request needs them to reach its single messages; sometimes one differs."""
    count = draw(st.integers(0, 5))

    def column(value: SearchStrategy[Any], *, absent: bool = True) -> list[Any]:
        if absent and draw(st.booleans()):
            return []
        length = count if draw(st.integers(0, 59)) else draw(st.integers(0, 7))
        return draw(st.lists(value, min_size=length, max_size=length))

    return pb.MessageColumns(
        topic=draw(_FIELDS["topic"]),
        transaction_id=b"".join(column(st.sampled_from(ids), absent=False)),
        n=column(st.sampled_from([0, 0, 0, 1, 2, 999, 1000, 2**32 - 1])),
        body=column(_BODY, absent=False),
        key=column(_mostly(st.sampled_from(["", "k"]), _TEXT)),
        tag=column(_mostly(st.sampled_from(["", "a", "b"]), _TEXT)),
        headers=column(_mostly(st.just(pack_headers({"a": "b"})), _HEADERS)),
        born_at_us=column(_FIELDS["born_at_us"], absent=False),
        ordering_key=column(_mostly(st.sampled_from(["", "", "o", "p"]), _TEXT)),
        deliver_at_us=column(st.sampled_from([0, 0, 0, 1, -1, _SOON_US, 2**62])),
        deliver_after_us=column(st.sampled_from([0, 0, 0, 0, 1, -1, 2**62])),
    )


@st.composite
def _send(draw: DrawFn) -> pb.SendRequest:
    half = draw(st.booleans())
    return pb.SendRequest(
        group=draw(_FIELDS["group"]),
        fence_id=draw(st.sampled_from([b"", IDS[0]])),
        half=half,
        batches=draw(st.lists(_columns(IDS if half else _PLAIN_IDS), max_size=3)),
    )


@st.composite
def _receive(draw: DrawFn) -> pb.ReceiveRequest:
    topics = st.builds(pb.Subscription, topic=st.sampled_from(TOPICS), tags=st.sampled_from(["*", "a", "a || b", ""]))
    return pb.ReceiveRequest(
        group=draw(st.sampled_from(GROUPS)),
        client_id=draw(_FIELDS["client_id"]),
        subscriptions=draw(st.lists(topics, max_size=3)),
        max_messages=draw(_UINT32),
        wait_ms=draw(_FIELDS["wait_ms"]),
        visibility_timeout_ms=draw(_UINT32),
        acks=draw(st.lists(wild(pb.Receipt), max_size=3)),
        refusals=draw(st.lists(wild(pb.Refusal), max_size=3)),
    )


_methods = {name: method for name, method in every_method().items() if not name.startswith("MetaQ")}
METHODS = {name: each for name, each in _methods.items() if not each.takes_many}
STREAMS = {name: each for name, each in _methods.items() if each.takes_many}
_COHERENT: dict[str, SearchStrategy[Any]] = {Notify.send.name: _send(), Notify.receive.name: _receive()}
_REQUESTS: dict[str, SearchStrategy[Any]] = {
    name: st.one_of(wild(each.request), *3 * [_COHERENT.get(name, st.nothing())]) for name, each in METHODS.items()
}


@st.composite
def damaged(draw: DrawFn, data: bytes) -> bytes:
    """Damage `data` as a bad line, a bug or an attacker would: flips, cuts, repeats, splices, inflated lengths."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(1, 16)))
        match draw(st.sampled_from(["flip", "cut", "end", "repeat", "insert", "length"])):
            case "flip":
                data = data[:at] + draw(st.binary(min_size=1, max_size=1)) + data[at + 1 :]
            case "cut":
                data = data[:at] + data[end:]
            case "end":
                data = data[:at]
            case "repeat":
                data = data[:end] + data[at:]
            case "insert":
                data = data[:at] + draw(st.binary(max_size=12)) + data[at:]
            case "length":
                huge = draw(st.sampled_from([b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01"]))
                data = data[:at] + huge + data[at + 1 :]
    return data


_CHANGES = st.sampled_from(["", "", "token", "epoch", "offset", "queue_id"])
_PICKS = st.lists(st.builds(Pick, st.integers(0, 63), _CHANGES, st.none() | _SINT64), max_size=4).map(tuple)


@st.composite
def exchanges(draw: DrawFn) -> Exchange:
    """A call of any method with a single request; one in five is damaged."""
    method = draw(st.sampled_from([*METHODS, *_COHERENT, *_COHERENT]))
    request: bytes = unchecked(draw(_REQUESTS[method]))
    if draw(st.integers(0, 4)) == 0:
        request = draw(damaged(request))
    return Exchange(method, request, draw(_PICKS) if method.endswith("/Receive") else ())


@st.composite
def frames(draw: DrawFn) -> list[bytes]:
    """Frames that a client may send up an Attach stream: mostly a Hello first, then anything, then damage."""
    good = st.just(pb.Hello(client_id="c", producer_group="shop", fence_ids=[IDS[0]]))
    hello = draw(good | wild(pb.Hello))
    first = [pb.ClientFrame(hello=hello)] if draw(st.integers(0, 9)) else []
    rest = draw(st.lists(wild(pb.ClientFrame), max_size=3))
    raw = [each.SerializeToString() for each in (*first, *rest)]
    return [draw(damaged(each)) if draw(st.integers(0, 5)) == 0 else each for each in raw]


assert BODY_SIZE_BYTES_MAX > 100_000, "the large body is meant to be one that is stored"
