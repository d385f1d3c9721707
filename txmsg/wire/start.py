"""Start positions in the queues of a topic: for groups, seeks, commands and Spark alike. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from txmsg.errors import MisuseError, ProtocolError, shown
from txmsg.message import us_of_datetime
from txmsg.runtime.durations import time_in
from txmsg.wire.values import Natural

_OFFSET_MAX: Final = 2**63 - 1
_AT_US_MAX: Final = 253_402_300_799_000_000  # the year 9999


@dataclass(frozen=True, slots=True)
class Start:
    """A start position: created by `earliest`, `latest`, `at`, `offset`, or `parse`.

    value: for a time, microseconds since 1970; for an offset, the offset.
    """

    kind: Literal["earliest", "latest", "time", "offset"]
    value: Natural = 0

    @classmethod
    def earliest(cls) -> Start:
        """Return the position of the first message that is kept."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> Start:
        """Return the position after the last message at present."""
        return cls("latest")

    @classmethod
    def at(cls, time: datetime) -> Start:
        """Return the position of the first message stored at this time or later. `time` needs a time zone, as
        `datetime.now(UTC)` has."""
        if not isinstance(time, datetime) or time.tzinfo is None or us_of_datetime(time) < 0:
            raise _not_valid("time", time)
        return cls("time", us_of_datetime(time))

    @classmethod
    def offset(cls, offset: int) -> Start:
        """Return the position of this offset of a queue."""
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= _OFFSET_MAX:
            raise _not_valid("offset", offset)
        return cls("offset", offset)

    @classmethod
    def parse(cls, text: str) -> Start:
        """Return the position in a text: "earliest", "latest", an offset, a time (ISO 8601, in UTC by default), or an
        age such as "2h"."""
        if text.lower() in {"earliest", "latest"}:
            return cls.earliest() if text.lower() == "earliest" else cls.latest()
        if re.fullmatch(r"[0-9]{1,19}", text):
            return cls.offset(int(text))
        if (time := time_in(text)) is None:
            raise _not_valid("", text)
        return cls.at(time)


# ---- where a group begins that is new to a topic, as the protocols say it


def start_to_wire(start: Start) -> str:
    """Return a start as text: "" for the earliest message, "latest", or microseconds since 1970."""
    assert start.kind != "offset", "check_group_start refuses offsets"
    return {"earliest": "", "latest": "latest"}.get(start.kind, str(start.value))


def start_of_wire(text: str) -> Start:
    """Return the start in a text; the inverse of `start_to_wire`. Raises ProtocolError."""
    if text in {"", "latest"}:
        return Start.latest() if text else Start.earliest()
    if re.fullmatch(r"[0-9]{1,18}", text) and int(text) <= _AT_US_MAX:
        return Start("time", int(text))
    raise ProtocolError(f"a group starts at 'latest' or at microseconds since 1970, not at {shown(text)}")


def check_group_start(start: object, *, default: Start) -> Start:
    """Return the start of a group that is new to a topic; `default` for None. Raises MisuseError."""
    if start is None:
        return default
    if not isinstance(start, Start) or start.kind == "offset":  # an offset is one of a queue, and a topic has several
        raise _not_valid("start", start)
    return start


def check_start(start: object) -> Start:
    """Return `start` if it is a Start. Raises MisuseError."""
    if not isinstance(start, Start):
        raise _not_valid("start", start)
    return start


def _not_valid(name: str, value: object) -> MisuseError:
    said = f"{name}={shown(value)}" if name else shown(value)
    return MisuseError(
        f"{said} is not a valid start position: give earliest, latest, a time such as 2026-05-01T10:00:00Z or 2h "
        "(ago), or an offset of one queue; in Python Start.earliest(), .latest(), .at(aware datetime) or .offset(n)"
    )
