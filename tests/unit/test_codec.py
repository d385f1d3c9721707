"""Values and errors survive the wire; what cannot be read is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmsg import errors
from txmsg.errors import InvalidMessage, ProtocolError, TxmsgError, error_of_code
from txmsg.message import message_id, new_transaction_id, parse_message_id
from txmsg.wire.codec import bytes_of_ids, ids_of_bytes, pack_headers, slices_of_ids, status_of_error, unpack_headers

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_CLASSES = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]


@given(st.dictionaries(_TEXT, _TEXT))
def test_headers_come_back_as_they_went(headers: dict[str, str]) -> None:
    assert unpack_headers(pack_headers(headers)) == headers


def test_no_headers_are_no_bytes() -> None:
    assert pack_headers({}) == b""
    assert unpack_headers(None) == {}


def test_headers_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ProtocolError, match="headers of 2 bytes"):
        unpack_headers(b"\x0a\xff")


@given(st.lists(st.uuids()))
def test_ids_come_back_as_they_went(ids: list[object]) -> None:
    assert ids_of_bytes(bytes_of_ids(ids)) == ids  # type: ignore[arg-type]


def test_ids_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ProtocolError, match="17 bytes"):
        slices_of_ids(b"x" * 17)


@pytest.mark.parametrize("kind", _CLASSES)
def test_every_error_comes_out_as_the_class_it_went_in(kind: type[TxmsgError]) -> None:
    again = error_of_code(kind.code, "text")
    assert type(again) is kind
    assert str(again) == "text"
    assert status_of_error(again).name


def test_codes_are_unique() -> None:
    assert len({kind.code for kind in _CLASSES}) == len(_CLASSES)


def test_message_ids_name_transaction_and_place() -> None:
    transaction_id = new_transaction_id()
    assert parse_message_id(message_id(transaction_id, 7)) == (transaction_id, 7)
    with pytest.raises(InvalidMessage, match="not-an-id"):
        parse_message_id("not-an-id")
