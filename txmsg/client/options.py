"""What the constructors of producers and consumers check of their options. Knows no network."""

from __future__ import annotations

import math
from collections.abc import Iterable

from txmsg.checker.listener import CheckMessageListener
from txmsg.client.user_function import check_takes
from txmsg.errors import InvalidName, MisuseError, shown
from txmsg.wire.address import check_address

__all__ = ["addresses_of", "check_count", "check_listener_of", "check_seconds"]


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
