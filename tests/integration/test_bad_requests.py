"""Requests that no txmsg client sends: each is refused with a text, and others of the request are served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from google.protobuf.message import Message

from tests.broker_process import BrokerProcess
from tests.raw_client import RawClient
from txmsg.administration.halves import HalfPage, HalfQuery, ResumeHalves
from txmsg.message import BODY_SIZE_BYTES_MAX, new_transaction_id
from txmsg.wire.codec import REQUEST_ITEMS_MAX
from txmsg.wire.method import packed, unpacked
from txmsg.wire.v1 import txmsg_pb2 as pb

_GARBAGE = b"\xff\xff\xff"
_UUID = UUID(int=7)
_ID = _UUID.bytes
_MANY = (REQUEST_ITEMS_MAX + 1) * _ID
_LONG = "x" * 1_000_000
_LARGE = bytes(3 * 1024 * 1024)

_REFUSED: list[tuple[str, Message | bytes, str, str]] = [
    ("Notify/Send", _GARBAGE, "protocol", "cannot be read"),
    ("Notify/Receive", _GARBAGE, "protocol", "cannot be read"),
    ("Admin/Stats", _GARBAGE, "protocol", "are not a Nothing in JSON"),
    ("Notify/Send", pb.SendRequest(group="g", half=True, fence_id=b"short"), "invalid_message", "16 bytes, not 5"),
    ("Notify/Send", pb.SendRequest(group=_LONG, half=True), "invalid_name", "1000000"),
    (
        "Notify/Send",
        pb.SendRequest(batches=[pb.MessageColumns(topic="t", transaction_id=_MANY, body=[b""] * (len(_MANY) // 16))]),
        "invalid_message",
        "4097 items",
    ),
    (
        "Notify/Send",
        pb.SendRequest(
            batches=[pb.MessageColumns(topic="t", transaction_id=3 * _ID, body=3 * [_LARGE], born_at_us=[0, 0, 0])]
        ),
        "message_too_large",
        "9437184 bytes of bodies",
    ),
    ("Notify/EndTransactions", pb.EndTransactionsRequest(shard=b"short"), "protocol", "16 bytes, not 5"),
    ("Notify/EndTransactions", pb.EndTransactionsRequest(commit=_ID + b"x"), "protocol", "17 bytes"),
    ("Notify/EndTransactions", pb.EndTransactionsRequest(rollback=_MANY), "invalid_message", "4097 items"),
    ("Notify/Held", pb.HeldRequest(transaction_ids=_MANY), "invalid_message", "4097 items"),
    ("Notify/Receive", pb.ReceiveRequest(group="g", client_id=_LONG), "protocol", "1000000 characters"),
    (
        "Notify/Receive",
        pb.ReceiveRequest(group="g", max_messages=1, subscriptions=[pb.Subscription(topic="t", tags="a||" * 30_000)]),
        "invalid_message",
        "90001 characters",
    ),
    (
        "Notify/Receive",
        pb.ReceiveRequest(group="g", max_messages=1, subscriptions=[pb.Subscription(topic=_LONG)]),
        "invalid_name",
        "1000000",
    ),
    ("Admin/ListHalves", b'{"group":"\\u0000"}', "invalid_name", "group"),
    ("Admin/ListHalves", b'{"transaction_id":"7"}', "protocol", "transaction_id='7' must be a UUID"),
    ("Admin/ResumeHalves", packed(ResumeHalves()), "protocol", "one transaction id or one group"),
    ("Admin/ResumeHalves", packed(ResumeHalves(transaction_id=_UUID, group="g")), "protocol", "one transaction id or"),
    ("Admin/ResumeHalves", b'{"group":"\\u0000"}', "invalid_name", "group"),
]


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    """A raw client of a broker."""
    with RawClient(broker.address) as connected:
        yield connected
    log = broker.log.read_text()
    assert "Traceback" not in log, log


def ask(client: RawClient, method: str, request: Message | bytes) -> bytes:
    answer = client.answer(client.begin(method, request if isinstance(request, bytes) else request.SerializeToString()))
    assert answer.error is None
    assert answer.reply is not None
    return answer.reply


def send_halves(client: RawClient, rows: list[tuple[bytes, int, bytes]], topic: str = "t") -> pb.SendReply:
    ids, places, bodies = zip(*rows, strict=True)
    columns = pb.MessageColumns(
        topic=topic, transaction_id=b"".join(ids), n=places, body=bodies, born_at_us=[0] * len(rows)
    )
    return pb.SendReply.FromString(ask(client, "Notify/Send", pb.SendRequest(group="g", half=True, batches=[columns])))


def test_a_bad_request_is_refused_with_a_code_and_a_short_text(client: RawClient) -> None:
    for method, request, code, text in _REFUSED:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        told = client.answer(client.begin(method, data)).told
        assert told is not None, method
        assert told.code == code, (method, told)
        assert text in told.text, (method, told.text)
        assert len(told.text) <= 1000


def test_a_text_about_many_items_does_not_repeat_a_huge_value(client: RawClient) -> None:
    reply = send_halves(client, [(new_transaction_id().bytes, 0, b"") for _ in range(1000)], topic=_LONG)
    assert len(reply.errors) == 1000
    assert reply.ByteSize() < 1_000_000


@pytest.mark.parametrize("first", [True, False])
def test_an_unreadable_frame_ends_the_stream_with_an_error_text(client: RawClient, first: bool) -> None:
    hello = pb.ClientFrame(hello=pb.Hello(client_id="c", producer_group="g")).SerializeToString()
    half_an_id = pb.ClientFrame(check_answer=pb.CheckAnswer(transaction_id=b"half an id")).SerializeToString()
    for bad in (_GARBAGE, half_an_id) if not first else (_GARBAGE, b"", half_an_id):
        attach = client.begin("Notify/Attach", bad if first else hello, flags=0)
        if not first:
            client.push(attach, bad)
        told = client.answer(attach).told
        assert told is not None, bad
        assert told.code == "protocol", (bad, told)
        assert told.text


def test_halves_that_could_never_be_checked_are_refused_and_others_stored(client: RawClient, notify_url: str) -> None:
    headless, torn, whole = sorted(new_transaction_id().bytes for _ in range(3))
    rows = [(headless, 1, b""), (torn, 0, b""), (torn, 2, b""), (whole, 1, b""), (whole, 0, b"")]
    reply = send_halves(client, rows)
    assert [(each.transaction_id, each.code) for each in reply.errors] == [
        (headless, "invalid_message"),
        (torn, "invalid_message"),
    ]
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        stored = connection.execute("select transaction_id, n from txmsg.half_message order by n").fetchall()
    assert stored == [(UUID(bytes=whole), 0), (UUID(bytes=whole), 1)]


@pytest.mark.parametrize("bad_tag", ["", "a|b"], ids=["tags are valid", "a tag is not"])
def test_invalid_headers_and_tags_are_refused_and_others_stored(
    client: RawClient, notify_url: str, bad_tag: str
) -> None:
    """Headers of few messages are checked alone; a wrong tag makes all messages be checked."""
    bare, tagged, unread, carrying, tagged_badly = ids = [new_transaction_id().bytes for _ in range(5)]
    carried = pb.Headers(values={"h": "1"}).SerializeToString()
    columns = pb.MessageColumns(
        topic="t",
        transaction_id=b"".join(ids),
        body=[b""] * 5,
        born_at_us=[0] * 5,
        tag=["", "new", "", "new", bad_tag],
        headers=[b"", b"", _GARBAGE, carried, b""],
    )
    reply = pb.SendReply.FromString(ask(client, "Notify/Send", pb.SendRequest(group="g", batches=[columns])))
    refused = {unread: "protocol"} | ({tagged_badly: "invalid_name"} if bad_tag else {})
    assert {each.transaction_id: each.code for each in reply.errors} == refused
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        rows = connection.execute("select transaction_id, tag, headers from txmsg.message").fetchall()
    stored = {row[0].bytes: row[1:] for row in rows}
    expected = {bare: (None, None), tagged: ("new", None), carrying: ("new", carried), tagged_badly: (None, None)}
    assert stored == {each: value for each, value in expected.items() if each not in refused}


def test_a_list_of_halves_is_truncated_to_the_size_of_a_reply_and_marked(client: RawClient) -> None:
    for _ in range(6):
        send_halves(client, [(new_transaction_id().bytes, 0, b"x" * BODY_SIZE_BYTES_MAX)])

    def listed(**query: Any) -> HalfPage:
        return unpacked(HalfPage, ask(client, "Admin/ListHalves", packed(HalfQuery(**query))))

    reply = listed(with_bodies=True)
    assert (len(reply.halves), bool(reply.next)) == (5, True)  # as many as begin within 16 MiB
    assert {len(each.body) for each in reply.halves} == {BODY_SIZE_BYTES_MAX}
    reply = listed(limit=2)
    assert (len(reply.halves), bool(reply.next), reply.halves[0].body) == (2, True, b"")
    reply = listed(limit=6)
    assert (len(reply.halves), bool(reply.next)) == (6, False)
