"""Conversion of messages to Kafka records and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn

import confluent_kafka
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME
from hypothesis import given
from hypothesis import strategies as st

import txmsg.metaq.kafka.batch
from txmsg.errors import UnreadableMessage
from txmsg.message import Message, ReceivedMessage, new_transaction_id_bytes
from txmsg.metaq import LogProducer
from txmsg.metaq.format.frame import Compression, FrameColumns, encode, unpacked
from txmsg.metaq.kafka.batch import RecordBatch
from txmsg.metaq.kafka.record import Record, queue_offset, received, records_of
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.topics import TopicSettings
from txmsg.wire.headers import pack_headers, unpack_headers
from txmsg.wire.tags import parse_tags

ID = bytes(range(16))
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
_US = st.integers(0, 2**52)
_NAMES = st.sampled_from(["txmsg-id", "txmsg-place", "txmsg-header.txmsg-id", "txmsg-tried", "plain"])


def read(record: Record | dict[str, Any], *, offset: int = 0) -> confluent_kafka.Message:
    """Return the record as Kafka returns it at this offset of a partition."""
    found = record._asdict() if isinstance(record, Record) else record
    return confluent_kafka.Message(
        topic="t",
        partition=3,
        offset=offset,
        key=found.get("key"),
        value=found.get("value"),
        headers=found.get("headers"),
        timestamp=(TIMESTAMP_CREATE_TIME, found.get("timestamp_ms", 0)),
    )


@st.composite
def messages(draw: st.DrawFn) -> ReceivedMessage:
    return ReceivedMessage(
        "t",
        draw(st.binary(max_size=8)),
        draw(st.none() | _TEXT),
        draw(st.none() | st.sampled_from(["created", "paid"])),
        draw(st.dictionaries(_TEXT | _NAMES, _TEXT, max_size=3)),
        3,
        draw(st.integers(0, 2**62)),
        1,
        draw(st.binary(min_size=16, max_size=16)),
        draw(st.integers(0, 999)),
        draw(_US),
        draw(_US),
        draw(st.none() | _TEXT),
    )


def columns(message: ReceivedMessage) -> FrameColumns:
    return FrameColumns(
        body=[message.body],
        stored_at_us=[message.stored_at_us],
        transaction_id=message.id_bytes,
        n=[message.n],
        born_at_us=[message.born_at_us],
        key=[message.key or ""],
        tag=[message.tag or ""],
        ordering_key=[message.ordering_key or ""],
        headers=[pack_headers(message.headers)],
    )


@given(messages())
def test_a_message_round_trips_through_a_record(message: ReceivedMessage) -> None:
    (record,) = records_of(columns(message), "t", 3, message.offset)
    assert received(read(record, offset=7), "t", 3) == message
    assert queue_offset(read(record, offset=7)) == message.offset


@given(st.lists(messages(), min_size=1, max_size=5), st.sampled_from(Compression))
def test_a_frame_round_trips(found: list[ReceivedMessage], compression: Compression) -> None:
    each = [columns(message) for message in found]

    def joined(name: str) -> list[Any]:
        return [value for of in each for value in getattr(of, name)]

    names = [field.name for field in fields(FrameColumns) if field.name != "transaction_id"]
    whole = FrameColumns(
        **{name: joined(name) for name in names}, transaction_id=b"".join(of.transaction_id for of in each)
    )
    assert list(records_of(unpacked(encode(whole, compression)), "t", 3)) == list(records_of(whole, "t", 3))


@given(
    st.lists(st.tuples(messages(), st.sampled_from([3, 3, 3, 30])), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_columns_equal_those_of_the_messages(
    written: list[tuple[ReceivedMessage, int]], are_alike: bool, has_offsets: bool, is_spoilt: bool
) -> None:
    """The cases are records alike or not, read as whole columns or not, and copies from partition 30."""
    found = [message for message, _ in written]
    if are_alike:
        found = [each._replace(key="k", tag=found[0].tag, n=each.n % 10, headers={}) for each in found]
        found = [each._replace(ordering_key=found[0].ordering_key) for each in found]
    records = [
        next(records_of(columns(each), "t", number, each.offset if has_offsets else None))
        for each, (_, number) in zip(found, written, strict=True)
    ]
    if is_spoilt:
        records[-1] = records[-1]._replace(headers=[("txmsg-id", None), ("txmsg-place", b"t/3")])
    taken = [read(record, offset=7 + at) for at, record in enumerate(records)]
    if is_spoilt:
        found, written = found[:-1], written[:-1]
        if not found:
            with pytest.raises(UnreadableMessage):
                RecordBatch.of("t", 3, taken)
            return
    batch = RecordBatch.of("t", 3, taken)
    expected = list(batch.messages())
    assert [each.offset for each in expected] == [
        each.offset if has_offsets and number == 3 else 7 + at
        for at, (each, (_, number)) in enumerate(zip(found, written, strict=True))
    ]
    rows = batch.to_arrow().to_pylist()
    assert [(row["offset"], row["transaction_id"], row["n"], row["key"], row["tag"]) for row in rows] == [
        (each.offset, each.id_bytes, each.n, each.key, each.tag) for each in expected
    ]
    assert [(row["ordering_key"], row["body"], unpack_headers(row["headers"])) for row in rows] == [
        (each.ordering_key, each.body, each.headers) for each in expected
    ]
    assert [(row["born_at"], row["stored_at"]) for row in rows] == [(each.born_at, each.stored_at) for each in expected]
    assert len(batch.to_arrow(parse_tags("paid"))) == sum(each.tag == "paid" for each in expected)


class RecordingLog:
    """Records the appends of a producer."""

    def __init__(self) -> None:
        self.appends: list[Append] = []

    def append(self, appends: Sequence[Append]) -> list[int]:
        self.appends += appends
        return [0] * len(appends)

    def settings_of(self, _: str) -> TopicSettings:
        return TopicSettings()


@pytest.mark.parametrize("offset", [None, 41])
@pytest.mark.parametrize("more", [{}, {"key": "k", "tag": "paid"}, {"key": "k", "ordering_key": "buyer"}])
def test_records_of_a_producer_or_a_mirror_are_read_as_whole_columns(
    monkeypatch: pytest.MonkeyPatch, offset: int | None, more: dict[str, Any]
) -> None:
    def one_by_one(_: object) -> NoReturn:
        pytest.fail("each record was made a message, which takes three times as long")

    monkeypatch.setattr(txmsg.metaq.kafka.batch, "_columns_of", one_by_one)
    kept = RecordingLog()
    LogProducer(kept, queues=1).send_many([Message("t", b"%d" % number, **more) for number in range(5)])
    [append] = kept.appends
    records = [read(record) for record in records_of(unpacked(append.payload), "t", 3, offset)]
    assert RecordBatch.of("t", 3, records).to_arrow()["body"].to_pylist() == [b"0", b"1", b"2", b"3", b"4"]


def test_without_a_queue_offset_the_partition_offset_counts() -> None:
    (record,) = records_of(FrameColumns([b"x"], [5000], ID), "t", 3)
    assert received(read(record, offset=7), "t", 3).offset == queue_offset(read(record, offset=7)) == 7
    assert record.headers == [("txmsg-place", b"t/3"), ("txmsg-id", b"00010203-0405-0607-0809-0a0b0c0d0e0f.0")]


def test_a_record_has_key_timestamp_and_headers_as_usual_in_kafka() -> None:
    made = records_of(
        FrameColumns(
            [b"a", b"b"],
            [1_700_000_000_000_123],
            2 * ID,
            n=[0, 1],
            key=["user 1", "user 2"],
            ordering_key=["", "region"],
            tag=["paid", ""],
            headers=[b"", pack_headers({"source": "shop"})],
        ),
        "shop.t",
        3,
        41,
    )
    times = ("txmsg-times", b"1700000000000123 1700000000000123")
    assert list(made) == [
        Record(
            b"a",
            b"user 1",
            1_700_000_000_000,
            [
                ("txmsg-place", b"shop.t/3/41"),
                ("txmsg-id", b"00010203-0405-0607-0809-0a0b0c0d0e0f.0"),
                times,
                ("txmsg-tag", b"paid"),
            ],
        ),
        Record(
            b"b",
            b"region",
            1_700_000_000_000,
            [
                ("txmsg-place", b"shop.t/3/42"),
                ("txmsg-id", b"00010203-0405-0607-0809-0a0b0c0d0e0f.1"),
                times,
                ("txmsg-key", b"user 2"),
                ("source", b"shop"),
            ],
        ),
    ]


def test_a_foreign_record_is_a_message_with_its_own_id() -> None:
    record = {"value": b"x", "key": b"k\xff", "headers": [("h", b"\xff"), ("none", None)], "timestamp_ms": 12}
    message = received(read(record, offset=5), "t", 3)
    assert message[:7] == ("t", b"x", "k\\xff", None, {"h": "\\xff", "none": ""}, 3, 5)
    assert message.stored_at_us == message.born_at_us == 12_000
    assert message.transaction_id.version == 8
    assert received(read(record, offset=5), "t", 3).id == message.id
    assert received(read(record, offset=6), "t", 3).id != message.id
    assert received(read({"value": None}), "t", 3).body == b""


@pytest.mark.parametrize(
    "header",
    [
        ("txmsg-id", b"x"),
        ("txmsg-id", b"00010203-0405-0607-0809-0a0b0c0d0e0f.32768"),
        ("txmsg-times", b"5"),
        ("txmsg-times", b"5 1%b" % (b"0" * 5000)),
        ("txmsg-tag", b"\xff"),
    ],
)
@pytest.mark.parametrize(("place", "offset"), [(b"t/3", 9), (b"t/3/5", 5)])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_inconsistent_txmsg_header_is_named(
    place: bytes, offset: int, header: tuple[str, bytes], is_first: bool
) -> None:
    own = ("txmsg-place", place)
    record = read({"value": b"x", "headers": [header, own] if is_first else [own, header]}, offset=9)
    with pytest.raises(UnreadableMessage, match=f"at offset 9 of partition 3 .*, header {header[0]} is") as stopped:
        received(record, "t", 3)
    assert stopped.value.next_offset == offset + 1


@pytest.mark.parametrize("timestamp_ms", [1_700_000_000_000_000, 1_700_000_000_000_000_000, -(2**60)])
def test_an_invalid_timestamp_is_named_unless_txmsg_headers_have_the_time(timestamp_ms: int) -> None:
    record = {"value": b"x", "timestamp_ms": timestamp_ms}
    with pytest.raises(UnreadableMessage, match=f"its time {timestamp_ms} ms since 1970 is not from the year 1"):
        received(read(record, offset=9), "t", 3)
    own = {**record, "headers": [("txmsg-place", b"t/3"), ("txmsg-times", b"5 6")]}
    assert received(read(own, offset=9), "t", 3).stored_at_us == 6


@pytest.mark.parametrize("bad", [0, 1, 4, 5])
@pytest.mark.parametrize("are_alike", [True, False])
@pytest.mark.parametrize(
    ("header", "timestamp_ms"), [(("txmsg-id", b"x"), 5), (("txmsg-times", b"1 9%b" % (b"0" * 17)), 5), (None, 2**60)]
)
def test_a_batch_ends_before_an_unreadable_record(
    *, bad: int, are_alike: bool, header: tuple[str, bytes] | None, timestamp_ms: int
) -> None:
    made = FrameColumns([b"%d" % at for at in range(6)], [5000], 6 * ID, tag=[] if are_alike else ["", "a"] * 3)
    records = list(records_of(made, "t", 3))
    spoilt = [pair for pair in records[bad].headers if header is None or pair[0] != header[0]]
    spoilt += [] if header is None else [header]
    records[bad] = records[bad]._replace(headers=spoilt if header else [], timestamp_ms=timestamp_ms)
    read_back = [read(record, offset=at) for at, record in enumerate(records)]
    if bad == 0:
        with pytest.raises(UnreadableMessage):
            RecordBatch.of("t", 3, read_back)
    else:
        batch = RecordBatch.of("t", 3, read_back)
        assert (batch.base_offset, batch.end_offset, len(batch)) == (0, bad, bad)
        assert batch.size_bytes == sum(200 + 1 for _ in range(bad))
        assert batch.to_arrow()["body"].to_pylist() == [message.body for message in batch.messages()] == made.body[:bad]
    if bad < 5:
        assert RecordBatch.of("t", 3, read_back[bad + 1 :]).base_offset == bad + 1


@pytest.mark.parametrize(
    "place",
    [
        b"t/30",
        b"t/30/5",
        b"t/0",
        b"u/3/5",
        b"shop.t/3/5",
        b"t3/5",
        b"5",
        b"t",
        b"",
        None,
        b"\xff/3",
        b"t/3/x",
        b"t/3/",
        b"t/3/-1",
        b"t/3/0x1",
        b"t/3/" + b"9" * 20,
        b"t/3/" + b"9" * 5000,
    ],
)
@pytest.mark.parametrize(
    "header",
    [("txmsg-id", b"x"), ("txmsg-times", b"5"), ("txmsg-tag", b"paid"), ("txmsg-key", b"k2"), ("txmsg-header.a", b"b")],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_txmsg_headers_for_another_partition_are_treated_as_user_headers(
    place: bytes | None, header: tuple[str, bytes], is_first: bool
) -> None:
    """This holds whether they can be parsed or not."""
    headers = [("txmsg-place", place), header]
    record = read(
        {"value": b"x", "key": b"k", "timestamp_ms": 12, "headers": headers if is_first else headers[::-1]}, offset=9
    )
    message = received(record, "t", 3)
    assert (message.offset, queue_offset(record), message.key, message.tag, message.ordering_key) == (
        9,
        9,
        "k",
        None,
        None,
    )
    assert message.headers == {
        "txmsg-place": (place or b"").decode(errors="backslashreplace"), header[0]: header[1].decode()
    }  # fmt: skip
    assert (message.born_at_us, message.stored_at_us) == (12_000, 12_000)
    assert message.id == received(read({"timestamp_ms": 12}, offset=9), "t", 3).id
    batch = RecordBatch.of("t", 3, [record])
    assert batch.to_arrow()["offset"].to_pylist() == [9]


def test_the_first_of_two_place_headers_counts() -> None:
    own, other = ("txmsg-place", b"t/3/5"), ("txmsg-place", b"t/4/6")
    for headers, offset in (([own, other], 5), ([other, own], 9)):
        record = read({"headers": headers}, offset=9)
        assert (received(record, "t", 3).offset, queue_offset(record)) == (offset, offset)


def test_copied_records_among_produced_ones_get_their_own_offsets() -> None:
    """In a batch, too, those before and after them have the partition's offsets."""
    ids = b"".join(new_transaction_id_bytes() for _ in range(6))
    made = FrameColumns([b"%d" % at for at in range(6)], [5000], ids)
    own, copied = list(records_of(made, "t", 3)), list(records_of(made, "t", 4, 1_000_000))
    records = [read(record, offset=at) for at, record in enumerate([*own, *copied, *own, *copied])]
    batch = RecordBatch.of("t", 3, records)
    assert (batch.base_offset, batch.end_offset) == (0, 24)
    assert batch.to_arrow()["offset"].to_pylist() == list(range(24))
    assert [message.offset for message in batch.messages()] == list(range(24))
    assert len({message.id for message in batch.messages()}) == 6 + 12


def test_ids_in_a_batch_stay_with_their_messages() -> None:
    ids = [new_transaction_id_bytes() for _ in range(3)]
    made = records_of(FrameColumns([b"a", b"b", b"c"], [1], b"".join(ids)), "t", 3)
    assert [received(read(record), "t", 3).id_bytes for record in made] == ids
