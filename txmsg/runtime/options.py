"""Checks parameters that producers and consumers share, and names the parameter and the value that are wrong. Pure."""

from __future__ import annotations

from uuid import uuid4

from txmsg.errors import MisuseError, shown
from txmsg.message import check_name


def check_count(name: str, value: object, *, most: int) -> int:
    """`value` as a whole number from 1 on; else MisuseError."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
        return value
    raise MisuseError(f"{name}={shown(value)} must be a whole number from 1 to {most}")


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
