"""What the constructors of producers and consumers check of their options. Knows no network."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from uuid import uuid4

from txmsg.checker.listener import CheckMessageListener
from txmsg.client.user_function import check_takes
from txmsg.errors import InvalidName, MisuseError, shown
from txmsg.message import check_name, us_of_datetime
from txmsg.wire.address import check_address

__all__ = [
    "addresses_of",
    "broadcast_group_of",
    "check_count",
    "check_listener_of",
    "check_seconds",
    "homes_of",
    "start_of",
]


def addresses_of(brokers: object) -> list[str]:
    """The addresses in "host:port", "host:port,host:port" or a list of these. Raises InvalidName for anything else."""
    if isinstance(brokers, str):
        texts: list[object] = list(brokers.split(","))
    elif isinstance(brokers, Iterable):
        texts = list(brokers)
    else:
        texts = [brokers]
    if not texts:
        raise InvalidName("no broker address was given: give at least one HOST:PORT, such as localhost:7700")
    return list(dict.fromkeys(check_address("broker address", text) for text in texts))


def homes_of(brokers: object) -> list[list[str]]:
    """The addresses of each Notify database: several are separated by semicolons, or are lists in a list.

    Raises InvalidName, and MisuseError for an address that is listed for two of them.
    """
    if isinstance(brokers, str):
        homes = [addresses_of(each) for each in brokers.split(";")]
    else:
        items = list(brokers) if isinstance(brokers, Iterable) else [brokers]
        are_lists = any(isinstance(each, Iterable) and not isinstance(each, str | bytes) for each in items)
        homes = [addresses_of(each) for each in items] if are_lists else [addresses_of(items)]
    seen: set[str] = set()
    for address in (address for home in homes for address in home):
        if address in seen:
            raise MisuseError(f"broker address {address} is listed for two Notify databases: it has one, list it once")
        seen.add(address)
    return homes


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


def check_listener_of(listener: CheckMessageListener | None) -> CheckMessageListener | None:
    """The listener if its `check` can be asked; else MisuseError, for an answer that never comes loses no message but
    leaves it in doubt."""
    if listener is None:
        return None
    if isinstance(listener, type):
        raise MisuseError(f"check_listener is the class {listener.__name__}: give an object made of it")
    check = getattr(listener, "check", None)
    if check is None:
        raise MisuseError(
            f"check_listener {shown(listener)} has no method check(message): give a CheckMessageListener, such as "
            "FenceCheckListener(engine)"
        )
    check_takes("check_listener's", check, "message")
    return listener
