"""The address of a Kafka cluster, and the file of its properties. Pure, except for reading that file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txmsg.errors import InvalidName, MisuseError, shown
from txmsg.wire.address import KAFKA, check_address

CONFIG_VARIABLE: Final = "TXMSG_KAFKA_CONFIG"
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{0,120}\Z")
_NAME: Final = re.compile(r"[a-z][a-z0-9._]*\Z")

OURS: Final = frozenset(
    {
        "acks",
        "allow.auto.create.topics",
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "isolation.level",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.send.max.retries",
        "metadata.broker.list",
        "partition.assignment.strategy",
        "request.required.acks",
        "retries",
        "transactional.id",
    }
)
"""Properties that txmsg sets itself, because its guarantees depend on them."""
_CALLBACK: Final = re.compile(r".*_cb\Z|on_(commit|delivery)\Z")
"""Properties whose values are functions of the program."""


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """The servers to contact first, each HOST:PORT, and the prefix of each topic's name there."""

    servers: tuple[str, ...]
    prefix: str = ""

    def __str__(self) -> str:
        return f"{KAFKA}{','.join(self.servers)}{'/' if self.prefix else ''}{self.prefix}"


def is_kafka(where: object) -> bool:
    """Return True if this is the address of a Kafka cluster."""
    return isinstance(where, str) and where.startswith(KAFKA)


def parse_address(where: str) -> KafkaAddress:
    """Parse kafka://HOST:PORT,HOST:PORT/PREFIX. Raises InvalidName."""
    servers, _, prefix = where.removeprefix(KAFKA).partition("/")
    if not _PREFIX.match(prefix):
        raise InvalidName(
            f"the address {shown(where)} of a Kafka has the prefix {shown(prefix)}: use up to 120 of the characters "
            "A-Z a-z 0-9 . _ -"
        )
    return KafkaAddress(
        tuple(
            check_address(f"a server in the address {shown(where)} of a Kafka", server) for server in servers.split(",")
        ),
        prefix,
    )


def properties_file(given: str | os.PathLike[str] | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the given file, or else the one that the environment names."""
    named = given if given is not None else environ.get(CONFIG_VARIABLE)
    return Path(named) if named else None


def read_properties(path: Path | None) -> dict[str, str]:
    """Return properties of librdkafka, one NAME=VALUE per line; empty lines and lines that begin with # are skipped.

    Raises MisuseError for a file that cannot be read, a line of any other form, and a property that txmsg sets itself.
    """
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise MisuseError(
            f"the file of Kafka's properties {path} cannot be read ({exc}): name another by --kafka-config or "
            f"{CONFIG_VARIABLE}"
        ) from exc
    found: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        where = f"line {number} of {path}"
        if not equals or not _NAME.match(name):
            # Never the line itself: it may hold a password.
            raise MisuseError(f"{where} is not of the form NAME=VALUE, such as security.protocol=SASL_SSL")
        if name in OURS:
            raise MisuseError(f"{where} sets {name}, which txmsg sets itself: remove the line")
        if _CALLBACK.match(name):
            raise MisuseError(f"{where} sets {name}, which is a function of a program: remove the line")
        if name in found:
            raise MisuseError(f"{where} sets {name} a second time: remove one of both lines")
        found[name] = value
    return found
