"""Opens a log by its location: a directory, the address of a server, or that of a Kafka cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path

from txmsg.errors import StorageError
from txmsg.metaq.interface import LogAccess
from txmsg.metaq.kafka.location import is_kafka, parse_address, properties_file, read_properties
from txmsg.metaq.local import LocalLog
from txmsg.metaq.store.log import LogConfig
from txmsg.wire.credential import TokenChoice
from txmsg.wire.tls import TlsChoice

_ADDRESS = re.compile(r"unix:|[^/]*:[0-9]{1,5}\Z")


def open_log(
    where: str | os.PathLike[str],
    *,
    append: bool = False,
    config: LogConfig | None = None,
    tls: TlsChoice = None,
    token: TokenChoice = None,
    timeout_s: float = 15.0,
    kafka_config: str | os.PathLike[str] | None = None,
) -> LogAccess:
    """Open the log in a directory, at a server's address ("HOST:PORT", "unix:PATH"), or in Kafka ("kafka://HOST:PORT").

    append: True if this process is to be the only writer of a directory, which is created if missing and kept as
    `config` says. A server decides itself who may append. A directory whose name looks like an address is written
    "./NAME:1". tls, token: for a server, as for producers. timeout_s: how long calls to a server are retried.

    For Kafka, give one or more servers, separated by commas, and optionally a prefix of its topics:
    "kafka://a:9092,b:9092/PREFIX". kafka_config: a file with properties of its client, one NAME=VALUE per line, such as
    security.protocol; default: the file that TXMSG_KAFKA_CONFIG names. Needs `txmsg[kafka]`.

    Raises StorageError if another process writes the log, CorruptLog if there is none or it is damaged, InvalidName for
    an invalid address, MisuseError for properties that cannot be used.
    """
    text = os.fspath(where)
    if is_kafka(where):
        return _kafka_log(text, kafka_config, timeout_s)
    if is_address(where):
        from txmsg.metaq.remote.remote_log import RemoteLog

        return RemoteLog(text, tls=tls, token=token, timeout_s=timeout_s)
    return LocalLog(Path(text), append=append, config=config)


def _kafka_log(where: str, config: str | os.PathLike[str] | None, timeout_s: float) -> LogAccess:
    address, properties = parse_address(where), read_properties(properties_file(config))
    try:
        from txmsg.metaq.kafka.kafka_log import KafkaLog
    except ModuleNotFoundError as exc:
        if exc.name != "confluent_kafka":
            raise
        raise StorageError(f"{where} needs Kafka's client: pip install 'txmsg[kafka]'") from exc
    return KafkaLog(address, properties, timeout_s=timeout_s)


def is_address(where: str | os.PathLike[str]) -> bool:
    """Return True if this is the address of a server, not a directory."""
    return isinstance(where, str) and _ADDRESS.match(where) is not None
