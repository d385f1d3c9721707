"""What the constructors of producers and consumers check of their options. Knows no network."""

from __future__ import annotations

from collections.abc import Iterable

from txmsg.checker.listener import CheckMessageListener
from txmsg.errors import InvalidName, MisuseError, shown
from txmsg.runtime.user_function import check_takes
from txmsg.wire.address import check_address


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


def shards_of(brokers: object) -> list[list[str]]:
    """The addresses of each Notify database: several are separated by semicolons, or are lists in a list.

    Raises InvalidName, and MisuseError for an address that is listed for two of them.
    """
    if isinstance(brokers, str):
        shards = [addresses_of(part) for part in brokers.split(";")]
    else:
        items = list(brokers) if isinstance(brokers, Iterable) else [brokers]
        are_lists = any(isinstance(item, Iterable) and not isinstance(item, str | bytes) for item in items)
        shards = [addresses_of(item) for item in items] if are_lists else [addresses_of(items)]
    seen: set[str] = set()
    for address in (address for shard in shards for address in shard):
        if address in seen:
            raise MisuseError(f"broker address {address} is listed for two Notify databases: it has one, list it once")
        seen.add(address)
    return shards


def check_listener_of(listener: CheckMessageListener | None) -> CheckMessageListener | None:
    """The listener if its `check` can be asked; else MisuseError, for an answer that never comes loses no message but
    leaves it in doubt."""
    if listener is None:
        return None
    if isinstance(listener, type):
        raise MisuseError(f"check_listener is the class {listener.__name__}: give an instance")
    check = getattr(listener, "check", None)
    if check is None:
        raise MisuseError(
            f"check_listener {shown(listener)} has no method check(message): give a CheckMessageListener, such as "
            "FenceCheckListener(engine)"
        )
    check_takes("check_listener's", check, "message")
    return listener
