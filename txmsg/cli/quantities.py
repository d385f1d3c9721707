"""Lengths of time and sizes as people write them on a command line: 7d, 90s, 100GiB. Types of click's options."""

from __future__ import annotations

import re

import click

__all__ = ["duration", "size"]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_DURATION_S_MAX = 100 * 365 * 86_400


def duration(text: str) -> float:
    """Seconds, of a number and s, m, h or d."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([smhd])", text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds <= _DURATION_S_MAX:
        raise click.BadParameter(f"{text!r} is no length of time: write a number and s, m, h or d, as 12h or 7d.")
    return seconds


def size(text: str) -> int:
    """Bytes, of a number and KiB, MiB, GiB or TiB, or of a number alone."""
    found = re.fullmatch(r"(\d{1,15})(B|KiB|MiB|GiB|TiB|)", text)
    if not found:
        raise click.BadParameter(f"{text!r} is no size: write a number and KiB, MiB, GiB or TiB, as 100GiB.")
    return int(found[1]) * _BYTES[found[2]]
