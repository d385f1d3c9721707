"""Checks parameters that producers and consumers share, and names the parameter and the value that are wrong. Pure."""

from __future__ import annotations

import math
from datetime import datetime
from uuid import uuid4

from txmsg.errors import MisuseError, shown
from txmsg.message import check_name, us_of_datetime

__all__ = ["broadcast_group_of", "check_count", "check_seconds", "start_of"]


def check_seconds(name: str, value: object, *, least_s: float, most_s: float) -> float:
    """`value` as seconds between these; else MisuseError."""
    if isinstance(value, int | float) and not isinstance(value, bool) and least_s <= value <= most_s:
        return float(value)
    nan = " (not a number)" if isinstance(value, float) and math.isnan(value) else ""
    raise MisuseError(f"{name}={shown(value)}{nan} must be a number of seconds from {least_s:g} to {most_s:g}")


def check_count(name: str, value: object, *, most: int) -> int:
    """`value` as a whole number from 1 on; else MisuseError."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
        return value
    raise MisuseError(f"{name}={shown(value)} must be a whole number from 1 to {most}")


def start_of(start: object) -> str:
    """Where a group begins, as the protocol says it: "" for the earliest message, "latest", or us since 1970."""
    if start == "earliest":
        return ""
    if start == "latest":
        return "latest"
    if isinstance(start, datetime) and start.tzinfo is not None:
        us = us_of_datetime(start)
        if us >= 0:
            return str(us)
    raise MisuseError(
        f"start={shown(start)} says no place to begin: give 'earliest', 'latest', or a datetime with its time zone, as "
        "by datetime.now(UTC)"
    )


def broadcast_group_of(group: str, instance: object) -> str:
    """The group that a broadcasting member is by itself: GROUP%INSTANCE."""
    if instance is True:
        instance = uuid4().hex
    if not isinstance(instance, str) or "%" in instance:
        raise MisuseError(
            f"broadcast={shown(instance)} is neither True nor the name of an instance: give one that is this process's "
            "own and stays the same over restarts, such as its host's name, without %"
        )
    return check_name("consumer group", f"{group}%{check_name('broadcast instance', instance)}")
