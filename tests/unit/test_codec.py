"""Values and errors survive the wire; unreadable ones are refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.methods import made
from txmsg import errors
from txmsg.administration.dead_letters import DeadLetter, DeadLetterPage
from txmsg.errors import CorruptLog, InvalidMessage, OffsetOutOfRange, ProtocolError, TxmsgError
from txmsg.message import message_id, new_transaction_id, parse_id, parse_message_id
from txmsg.rocketmq.ids import usual_id
from txmsg.wire.codec import bytes_of_ids, ids_of_bytes, pack_headers, slices_of_ids, unpack_headers
from txmsg.wire.failures import TEXT_LENGTH_MAX, bytes_of_error, error_of_bytes
from txmsg.wire.headers import readable_headers
from txmsg.wire.v1.wire_pb2 import CallError
from txmsg.wire.values import packed, unpacked

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_CLASSES = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]


@given(st.dictionaries(_TEXT, _TEXT))
def test_headers_round_trip(headers: dict[str, str]) -> None:
    assert unpack_headers(pack_headers(headers)) == headers


def test_empty_headers_are_encoded_as_no_bytes() -> None:
    assert pack_headers({}) == b""
    assert unpack_headers(None) == {}


def test_unreadable_headers_are_refused() -> None:
    with pytest.raises(ProtocolError, match="headers of 2 bytes"):
        unpack_headers(b"\x0a\xff")


def test_unreadable_headers_of_another_client_do_not_hide_their_page() -> None:
    assert readable_headers(b"\x0a\xff") == {}
    headers = readable_headers(pack_headers({"a\0": "b\0", "c": "d"}))
    page = DeadLetterPage(letters=[made(DeadLetter, headers=headers)])
    assert unpacked(DeadLetterPage, packed(page), strict=False) == page


@given(st.lists(st.uuids()))
def test_ids_round_trip(ids: list[object]) -> None:
    assert ids_of_bytes(bytes_of_ids(ids)) == ids  # type: ignore[arg-type]


def test_ids_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ProtocolError, match="17 bytes"):
        slices_of_ids(b"x" * 17)


@pytest.mark.parametrize("kind", _CLASSES)
def test_every_error_keeps_its_class_over_the_wire(kind: type[TxmsgError]) -> None:
    again = error_of_bytes(bytes_of_error(kind("text")), "broker b:1")
    assert type(again) is kind
    assert str(again) == "text"


@pytest.mark.parametrize("kind", [each for each in _CLASSES if issubclass(each, OffsetOutOfRange)])
def test_an_offset_error_carries_the_available_range(kind: type[OffsetOutOfRange]) -> None:
    again = error_of_bytes(bytes_of_error(kind("text", 7, 2**63 - 1)), "broker b:1")
    assert isinstance(again, kind)
    assert (again.begin, again.end) == (7, 2**63 - 1)


@pytest.mark.parametrize("next_offset", [7, None])
def test_a_corrupt_log_error_carries_the_offset_to_continue_at(next_offset: int | None) -> None:
    again = error_of_bytes(bytes_of_error(CorruptLog("text", next_offset)), "log b:1")
    assert isinstance(again, CorruptLog)
    assert again.next_offset == next_offset


def test_an_unreadable_error_names_its_sender() -> None:
    again = error_of_bytes(b"\x0a\xff", "broker b:1")
    assert isinstance(again, ProtocolError)
    assert "broker b:1 refused the call" in str(again)


def test_error_text_is_truncated_on_both_sides_and_never_empty() -> None:
    assert str(error_of_bytes(bytes_of_error(TxmsgError("x" * 100_000)), "b")) == "x" * TEXT_LENGTH_MAX
    long = CallError(text="x" * 100_000).SerializeToString()
    assert str(error_of_bytes(long, "b")) == "x" * TEXT_LENGTH_MAX
    assert str(error_of_bytes(b"", "broker b:1")) == "broker b:1 gave no text"


def test_codes_are_unique() -> None:
    assert len({kind.code for kind in _CLASSES}) == len(_CLASSES)


def test_message_ids_contain_transaction_and_position() -> None:
    transaction_id = new_transaction_id()
    assert parse_message_id(message_id(transaction_id, 7)) == (transaction_id, 7)
    with pytest.raises(InvalidMessage, match="not-an-id"):
        parse_message_id("not-an-id")


def test_a_transaction_can_be_named_by_the_id_that_rocketmq_clients_print() -> None:
    transaction_id = new_transaction_id()
    assert parse_id(usual_id(transaction_id.bytes)) == parse_id(str(transaction_id)) == (transaction_id, None)
    for strange in ("02" + transaction_id.hex, "01" + transaction_id.hex[1:], usual_id(transaction_id.bytes) + ".0"):
        with pytest.raises(InvalidMessage):
            parse_id(strange)
