"""The setting TXMSG: each name declared once, with its values and its meaning. The docs' table is made from this."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from txmsg.client.async_producer import TIMEOUT_S_MAX
from txmsg.consumer.options import CLOSE_TIMEOUT_S, CLOSE_TIMEOUT_S_MAX, check_count
from txmsg.errors import TxmsgError, shown
from txmsg.message import check_name
from txmsg.runtime.durations import Seconds, check_seconds
from txmsg.settings.clients import CONCURRENCY_MAX, VISIBILITY_TIMEOUT_S_MAX, VISIBILITY_TIMEOUT_S_MIN
from txmsg.wire.brokers import shards_of
from txmsg.wire.credential import TokenChoice, check_token
from txmsg.wire.tls import TlsChoice, check_tls

_META: Final = "txmsg"
_EXAMPLE: Final = 'TXMSG = {"BROKERS": "localhost:7700", "GROUP": "shop"}'


class Option(NamedTuple):
    """The declaration of a name in TXMSG."""

    name: str
    takes: str
    """Its values, in words."""
    default_shown: str
    meaning: str
    check: Callable[[Any], object]
    """Raises MisuseError or InvalidName for any other value. Reads no file, and calls no function of the user's."""


def option(default: object, takes: str, check: Callable[[Any], object], meaning: str, *, shown_as: str = "") -> Any:
    declared = {"takes": takes, "default_shown": shown_as or f"`{default}`", "meaning": meaning, "check": check}
    return field(default=default, metadata={_META: declared})


def _seconds(name: str, least_s: float, most_s: float) -> Callable[[Any], float]:
    return partial(check_seconds, name, least_s=least_s, most_s=most_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The values of TXMSG; each is the parameter of Producer or Txmsg of the same name in lower case."""

    GROUP: str = option(
        None,
        "name",
        partial(check_name, "producer group"),
        "The producer group: this service among those that send. Transactions of a database other than `default` are "
        "of the group `GROUP.ALIAS`, so that a check-back itself says which database is asked.",
        shown_as="none; it must be given",
    )
    BROKERS: Any = option(
        None,
        '`"host:port"`, or several in a list or separated by commas; databases by semicolons',
        partial(shards_of, takes_memory=True),
        'The brokers. `"memory:"` keeps what is sent in the process, for tests.',
        shown_as="the variable `TXMSG_BROKERS`, or `localhost:7700`",
    )
    TLS: TlsChoice = option(
        None,
        "`True`, `False`, the path of a file (PEM), or an `ssl.SSLContext`",
        check_tls,
        "Whether connections to brokers are encrypted, and by which authorities brokers are verified.",
        shown_as="the variable `TXMSG_TLS_CA`, or no TLS",
    )
    TOKEN: TokenChoice = option(
        None,
        "a token, the `pathlib.Path` of a file with one, or a function that returns one",
        check_token,
        "What brokers that require a login are given.",
        shown_as="the variables `TXMSG_TOKEN_FILE` and `TXMSG_TOKEN`, or none",
    )
    TIMEOUT_S: Seconds = option(
        10.0,
        "seconds, or a `timedelta`",
        _seconds("TIMEOUT_S", 0.001, TIMEOUT_S_MAX),
        "How long a call that sends may take, with all its attempts.",
    )
    CONCURRENCY: int = option(
        4,
        f"a whole number from 1 to {CONCURRENCY_MAX}",
        partial(check_count, "CONCURRENCY", most=CONCURRENCY_MAX),
        "How many messages of each subscription a worker process handles at once. Each takes a database connection.",
    )
    VISIBILITY_TIMEOUT_S: Seconds = option(
        60.0,
        f"seconds from {VISIBILITY_TIMEOUT_S_MIN:g} to {VISIBILITY_TIMEOUT_S_MAX:g}, or a `timedelta`",
        _seconds("VISIBILITY_TIMEOUT_S", VISIBILITY_TIMEOUT_S_MIN, VISIBILITY_TIMEOUT_S_MAX),
        "How long after the last sign of life of a worker others get its messages.",
    )
    CLOSE_TIMEOUT_S: Seconds = option(
        CLOSE_TIMEOUT_S,
        "seconds, or a `timedelta`",
        _seconds("CLOSE_TIMEOUT_S", 0, CLOSE_TIMEOUT_S_MAX),
        "How long running handlers may take when a worker ends.",
    )

    def group_of(self, using: str) -> str:
        """Return the producer group of transactions of this database."""
        return self.GROUP if using == DEFAULT_DB_ALIAS else f"{self.GROUP}.{using}"


OPTIONS: Final = {each.name: Option(each.name, **each.metadata[_META]) for each in dataclasses.fields(Configuration)}
"""The options by name, in the order of their declaration."""


class Fault(NamedTuple):
    """A fault of TXMSG by itself."""

    id: str
    text: str
    hint: str


def faults() -> Iterator[Fault]:
    """Yield the faults of the setting TXMSG as it is now."""
    given = getattr(settings, "TXMSG", None)
    if given is None:
        yield Fault("txmsg.E001", "the setting TXMSG is missing", _EXAMPLE)
        return
    if not isinstance(given, Mapping):
        yield Fault(
            "txmsg.E001", f"the setting TXMSG is {shown(given)}", f"it must be a dictionary, such as {_EXAMPLE}"
        )
        return
    if "GROUP" not in given:
        yield Fault(
            "txmsg.E002", "TXMSG needs a GROUP, the name of this service among producers", 'for example "GROUP": "shop"'
        )
    for name, value in given.items():
        declared = OPTIONS.get(name)
        if declared is None:
            yield Fault("txmsg.E003", f"TXMSG has no {name!r}", f"there are {', '.join(OPTIONS)}")
            continue
        try:
            declared.check(value)
        except TxmsgError as exc:
            yield Fault("txmsg.E004", f'TXMSG["{name}"]: {exc}', f"it takes {declared.takes}")


def configuration() -> Configuration:
    """Return the setting TXMSG as it is now. Raises ImproperlyConfigured for the first fault."""
    fault = next(faults(), None)
    if fault is not None:
        raise ImproperlyConfigured(f"{fault.text}: {fault.hint}")
    return Configuration(**settings.TXMSG)
