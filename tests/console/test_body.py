"""Bodies shown as JSON, text or hexadecimal, truncated if long."""

from __future__ import annotations

import pytest

from txmsg.ops.console.body import HEX_SIZE_BYTES_MAX, SHOWN_SIZE_BYTES_MAX, shown_body


@pytest.mark.parametrize(
    ("body", "form", "shown"),
    [
        (b'{"a":[1]}', "json", '{\n  "a": [\n    1\n  ]\n}'),
        ("日本".encode(), "text", "日本"),
        (b"", "text", ""),
        (b"\xff\x00A", "hex", f"000000  {'ff 00 41':<47}  ..A"),
        (b"[" * 60_000, "text", "[" * 60_000),  # too deep for a parser
    ],
)
def test_body_is_shown_in_its_detected_format(body: bytes, form: str, shown: str) -> None:
    found = shown_body(body)
    assert (found.form, found.text, found.is_cut, found.size_bytes) == (form, shown, False, len(body))


def test_body_is_shown_in_the_requested_format_if_possible() -> None:
    assert shown_body(b"{}", "text").text == "{}"
    assert shown_body(b"{}", "hex").text.endswith("{}")
    assert shown_body(b"\xff", "json").form == "hex"
    assert shown_body(b"\xff", "text").text == "\ufffd"


def test_long_body_is_truncated() -> None:
    text = shown_body("é".encode() * SHOWN_SIZE_BYTES_MAX)
    assert (text.form, len(text.text), text.is_cut) == ("text", SHOWN_SIZE_BYTES_MAX // 2, True)
    binary = shown_body(b"\xff" * (HEX_SIZE_BYTES_MAX + 1), "hex")
    assert (len(binary.text.splitlines()), binary.is_cut) == (HEX_SIZE_BYTES_MAX // 16, True)
    nested = b"[" * 300 + b"]" * 300  # indented it would be much longer
    assert shown_body(nested * 1).form in {"json", "text"}
