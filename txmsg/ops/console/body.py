"""Bodies as text: JSON, text or hexadecimal, as appropriate, and never longer than fits a page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

SHOWN_SIZE_BYTES_MAX: Final = 64 * 1024
HEX_SIZE_BYTES_MAX: Final = 4 * 1024
_ROW_SIZE_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBody:
    """A body as text. form: json, text or hex. is_cut: only its beginning is shown."""

    form: str
    text: str
    size_bytes: int
    is_cut: bool


def shown_body(body: bytes, form: str = "") -> ShownBody:
    """Return a body in this form, or in the first form that fits it if this one does not, or "" is given."""
    if form in {"", "json"} and (text := _json(body)) is not None:
        return ShownBody(form="json", text=text, size_bytes=len(body), is_cut=False)
    is_long = len(body) > SHOWN_SIZE_BYTES_MAX
    if form != "hex":
        # A cut may go through a sign.
        text = body[:SHOWN_SIZE_BYTES_MAX].decode(errors="ignore" if is_long else "replace")
        if form == "text" or ("\ufffd" not in text and (not body or text)):
            return ShownBody(form="text", text=text, size_bytes=len(body), is_cut=is_long)
    return ShownBody(
        form="hex", text=_hex(body[:HEX_SIZE_BYTES_MAX]), size_bytes=len(body), is_cut=len(body) > HEX_SIZE_BYTES_MAX
    )


def _json(body: bytes) -> str | None:
    """Return indented JSON; None if the body is not JSON, or longer than is shown."""
    if len(body) > SHOWN_SIZE_BYTES_MAX:
        return None
    try:
        text = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return text if len(text) <= 4 * SHOWN_SIZE_BYTES_MAX else None  # deep lists grow by their indentation


def _hex(data: bytes) -> str:
    rows = []
    for at in range(0, len(data), _ROW_SIZE_BYTES):
        row = data[at : at + _ROW_SIZE_BYTES]
        signs = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        rows.append(f"{at:06x}  {row.hex(' '):<47}  {signs}")
    return "\n".join(rows)
