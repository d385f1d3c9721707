"""Checks a parameter that producers and consumers share, and names it and the value that is wrong. Pure."""

from __future__ import annotations

from txmsg.errors import MisuseError, shown


def check_count(name: str, value: object, *, most: int) -> int:
    """`value` as a whole number from 1 on; else MisuseError."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
        return value
    raise MisuseError(f"{name}={shown(value)} must be a whole number from 1 to {most}")
