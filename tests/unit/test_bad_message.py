"""An invalid message is refused at construction by an error that names the value and the remedy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.errors_page import is_documented
from txmsg.errors import InvalidMessage, InvalidName, MessageTooLarge, shown
from txmsg.message import BODY_SIZE_BYTES_CEILING, HEADERS_SIZE_BYTES_MAX, KEY_SIZE_BYTES_MAX, Message

SURROGATE = b"caf\xe9".decode(errors="surrogateescape")  # how Python reads a file name that is not UTF-8

NAMES = {
    "empty": ("", "it is empty"),
    "none": (None, "it is of type NoneType"),
    "bytes": (b"user", "it is of type bytes"),
    "too long": ("x" * 128, "it has 128 characters"),
    "endless": ("x" * 10_000_000, "it has 10000000 characters"),
    "space": ("user registered", "it holds ' '"),
    "line end": ("user\n", "it holds '\\n'"),
    "NUL": ("user\0", "it holds '\\x00'"),
    "accent": ("benutzé", "it holds 'é'"),
    "surrogate": (SURROGATE, "it holds '\\udce9'"),
    "slash": ("a/b", "it holds '/'"),
    "beginning": (".user", "it begins with '.'"),
}
CONTENTS: dict[str, tuple[dict[str, Any], type[InvalidMessage], str]] = {
    "key of another type": ({"key": 42}, InvalidMessage, "key must be str, not int (42)"),
    "empty key": ({"key": ""}, InvalidName, "give None"),
    "long key": ({"key": "é" * 257}, InvalidName, "514 bytes long in UTF-8: at most 512"),
    "NUL in key": ({"key": "a\0b"}, InvalidName, "key 'a\\x00b' contains a NUL"),
    "empty ordering key": ({"ordering_key": ""}, InvalidName, "ordering key is empty: give None"),
    "long ordering key": ({"ordering_key": "é" * 257}, InvalidName, "514 bytes long in UTF-8: at most 512"),
    "ordering key of another type": ({"ordering_key": 1}, InvalidMessage, "ordering key must be str, not int (1)"),
    "NUL in ordering key": ({"ordering_key": "a\0b"}, InvalidName, "ordering key 'a\\x00b' contains a NUL"),
    "moment without a time zone": (
        {"deliver_at": datetime(2026, 1, 1)},
        InvalidMessage,
        "is not a timezone-aware datetime",
    ),
    "moment that is a text": (
        {"deliver_at": "2026-01-01"},
        InvalidMessage,
        "deliver_at='2026-01-01' is not a timezone-aware datetime",
    ),
    "delay in seconds": (
        {"deliver_after": 5},
        InvalidMessage,
        "deliver_after=5 is not a non-negative timedelta: give a timedelta",
    ),
    "negative delay": ({"deliver_after": timedelta(-1)}, InvalidMessage, "give a timedelta of 0 or more"),
    "two delays": ({"deliver_after": timedelta(1), "deliver_at": datetime.now(UTC)}, InvalidMessage, "not both"),
    "order and delay": ({"ordering_key": "k", "deliver_after": timedelta(1)}, InvalidMessage, "cannot be delayed"),
    "first check in seconds": (
        {"first_check_after": 5},
        InvalidMessage,
        "first_check_after=5 is not a timedelta of 0 to 24 hours",
    ),
    "first check in two days": ({"first_check_after": timedelta(2)}, InvalidMessage, "of 0 to 24 hours"),
    "tag with a bar": ({"tag": "a|b"}, InvalidName, "tag 'a|b' is not valid: it holds '|'"),
    "tag with a line end": ({"tag": "a\n"}, InvalidName, "tag 'a\\n' is not valid: it holds '\\n'"),
    "surrogate in tag": ({"tag": SURROGATE}, InvalidName, "tag 'caf\\udce9' is not valid: it holds '\\udce9'"),
    "tag with a blank at its end": ({"tag": "paid "}, InvalidName, "it begins or ends with a blank"),
    "blank tag": ({"tag": " "}, InvalidName, "it begins or ends with a blank"),
    "tag with two ampersands": ({"tag": "R&&D"}, InvalidName, "tag 'R&&D' is not valid: it holds &&"),
    "tag that means all": ({"tag": "*"}, InvalidName, "it means all tags"),
    "long tag": ({"tag": "x" * 128}, InvalidName, "it has 128 characters"),
    "tag of another type": ({"tag": 5}, InvalidName, "it is of type int, not str"),
    "empty tag": ({"tag": ""}, InvalidName, "tag '' is not valid: it is empty"),
    "surrogate in key": ({"key": SURROGATE}, InvalidName, "key 'caf\\udce9' contains a lone surrogate at position 3"),
    "body of str": ({"body": "text"}, InvalidMessage, "body for topic 't' must be bytes, not str"),
    "body of bytearray": ({"body": bytearray(b"x")}, InvalidMessage, "not bytearray"),
    "no body": ({"body": None}, InvalidMessage, "not NoneType"),
    "large body": ({"body": bytes(BODY_SIZE_BYTES_CEILING + 1)}, MessageTooLarge, "body of 33554433 bytes"),
    "headers that are a list": ({"headers": ["a"]}, InvalidMessage, "must be a mapping of str to str, not list"),
    "headers that are None": ({"headers": None}, InvalidMessage, "not NoneType"),
    "header of another type": ({"headers": {"n": 1}}, InvalidMessage, "header 'n' must be str, not int (1)"),
    "header name of another type": ({"headers": {1: "n"}}, InvalidMessage, "header name must be str, not int (1)"),
    "NUL in header": ({"headers": {"n": "\0"}}, InvalidMessage, "header 'n' '\\x00' contains a NUL"),
    "surrogate in header": ({"headers": {"n": SURROGATE}}, InvalidMessage, "header 'n' 'caf\\udce9' contains a lone"),
    "surrogate in header name": ({"headers": {SURROGATE: "n"}}, InvalidMessage, "header name 'caf\\udce9' contains"),
    "large header": ({"headers": {"n": "x" * HEADERS_SIZE_BYTES_MAX}}, MessageTooLarge, "headers are 65537 bytes"),
    "large headers": ({"headers": {"a": "x" * 40_000, "b": "x" * 40_000}}, MessageTooLarge, "at most 65536"),
}


@pytest.mark.parametrize(("name", "why"), NAMES.values(), ids=NAMES)
def test_invalid_topic_name_is_refused_with_reason(name: Any, why: str) -> None:
    with pytest.raises(InvalidName) as caught:
        Message(name, b"x")
    text = str(caught.value)
    assert text.startswith(f"topic {shown(name)} is not a valid name: {why}")
    assert len(text) < 400
    assert is_documented(caught.value)


@pytest.mark.parametrize(("content", "kind", "words"), CONTENTS.values(), ids=CONTENTS)
def test_an_unstorable_field_is_refused_by_name(content: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        Message(**({"topic": "t", "body": b"x"} | content))
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400
    assert is_documented(caught.value)


def test_fields_of_maximum_length_are_accepted() -> None:
    message = Message(
        "%" + "x" * 126,
        b"",
        key="é" * (KEY_SIZE_BYTES_MAX // 2),
        tag="_" + "9" * 126,
        headers={"": "", "n": "x" * (HEADERS_SIZE_BYTES_MAX - 1)},
    )
    assert len(message.headers) == 2


def test_changing_the_headers_dict_later_does_not_change_the_message() -> None:
    headers: dict[str, Any] = {"n": "1"}
    message = Message("t", b"x", headers=headers)
    headers["n"] = object()
    assert message.headers == {"n": "1"}
    with pytest.raises(TypeError):
        message.headers["n"] = "2"  # type: ignore[index]


def test_valid_headers_are_checked_without_formatting_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formatting takes longer than everything else of a message, and would be paid for each header."""
    monkeypatch.setattr("txmsg.message.shown", _worded)
    assert Message("t", b"x", headers={"n": "1"}).headers == {"n": "1"}
    with pytest.raises(AssertionError, match="put into words: 'n'"):
        Message("t", b"x", headers={"n": "\0"})


def _worded(value: object) -> str:
    raise AssertionError(f"put into words: {value!r}")
