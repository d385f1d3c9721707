"""The setting TXMSG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from txmsg.errors import TxmsgError, shown
from txmsg.message import check_name


@dataclass(frozen=True, slots=True)
class Configuration:
    """TXMSG by name; each is the parameter of Producer and Consumer that is called so in small letters."""

    GROUP: str
    """The producer group. Transactions of a database other than "default" are of the group GROUP.ALIAS: a check-back
    then says by itself which database is to be asked."""
    BROKERS: Any = None
    TLS: Any = None
    TOKEN: Any = None
    TIMEOUT_S: float = 10.0
    CONCURRENCY: int = 4
    """How many messages a worker handles at once, of each subscription. Each takes a database connection."""


def configuration() -> Configuration:
    """What settings say now. Raises ImproperlyConfigured."""
    given = getattr(settings, "TXMSG", None)
    if given is None:
        raise ImproperlyConfigured(
            'the setting TXMSG is missing: TXMSG = {"BROKERS": "localhost:7700", "GROUP": "shop"}'
        )
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"the setting TXMSG is {shown(given)}: it must be a dictionary")
    known = [field.name for field in fields(Configuration)]
    if unknown := sorted(str(name) for name in given if name not in known):
        raise ImproperlyConfigured(f"TXMSG has no {unknown[0]!r}: there are {', '.join(known)}")
    if "GROUP" not in given:
        raise ImproperlyConfigured('TXMSG needs a GROUP, the name of this service among producers: "GROUP": "shop"')
    try:
        check_name("producer group", given["GROUP"])
    except TxmsgError as exc:
        raise ImproperlyConfigured(f'TXMSG["GROUP"]: {exc}') from exc
    return Configuration(**given)
