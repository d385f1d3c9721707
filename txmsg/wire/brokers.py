"""Addresses of brokers, of one Notify database or several. Knows no network."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from txmsg.errors import InvalidName, MisuseError
from txmsg.wire.address import check_address

BROKERS_VARIABLE: Final = "TXMSG_BROKERS"
"""The environment variable that names the brokers of applications, producers, consumers and commands without
`brokers`."""
BROKERS_DEFAULT: Final = "localhost:7700"
MEMORY: Final = "memory:"
"""Used in place of addresses: sent messages stay in this process."""


def addresses_of(brokers: object) -> list[str]:
    """Return the addresses in "host:port", "host:port,host:port" or a list of these. Raises InvalidName for anything
    else."""
    if isinstance(brokers, str):
        texts: list[object] = list(brokers.split(","))
    elif isinstance(brokers, Iterable):
        texts = list(brokers)
    else:
        texts = [brokers]
    if not texts:
        raise InvalidName("no broker address was given: give at least one HOST:PORT, such as localhost:7700")
    return list(dict.fromkeys(check_address("broker address", text) for text in texts))


def shards_of(brokers: object, *, takes_memory: bool = False) -> list[list[str]]:
    """Return the addresses of each Notify database: several are separated by semicolons, or are lists in a list.

    None: the value of the variable TXMSG_BROKERS, or localhost:7700. takes_memory: True if MEMORY alone is allowed.
    Raises InvalidName, and MisuseError for an address that is listed for two databases.
    """
    if brokers is None:
        try:
            return shards_of(os.environ.get(BROKERS_VARIABLE) or BROKERS_DEFAULT, takes_memory=takes_memory)
        except (InvalidName, MisuseError) as exc:
            raise type(exc)(f"the variable {BROKERS_VARIABLE}: {exc}") from exc
    if brokers == MEMORY:
        if takes_memory:
            return [[MEMORY]]
        raise MisuseError(
            f"{MEMORY!r} keeps what producers of this process send and delivers nothing: name a broker here (`txmsg "
            "up` starts one), or have a test hand on messages by txmsg.testing.Memory"
        )
    if isinstance(brokers, str):
        shards = [addresses_of(part) for part in brokers.split(";")]
    else:
        items = list(brokers) if isinstance(brokers, Iterable) else [brokers]
        # A list of texts is one database, a list of lists several: so the common case needs no brackets in brackets.
        are_lists = any(isinstance(item, Iterable) and not isinstance(item, str | bytes) for item in items)
        shards = [addresses_of(item) for item in items] if are_lists else [addresses_of(items)]
    seen: set[str] = set()
    for address in (address for shard in shards for address in shard):
        if address in seen:
            raise MisuseError(f"broker address {address} is listed for two Notify databases: it has one, list it once")
        seen.add(address)
    return shards


def one_database_of(brokers: object) -> list[str]:
    """Return the addresses of one Notify database, as `shards_of`. Raises MisuseError if brokers of several are
    given."""
    shards = shards_of(brokers)
    given = f"are in the variable {BROKERS_VARIABLE}" if brokers is None else "were given"
    if len(shards) > 1:
        raise MisuseError(
            f"brokers of {len(shards)} Notify databases {given}, and this is about one of them: name its brokers"
        )
    return shards[0]
