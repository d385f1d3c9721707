"""Settings of a tailer, checked when they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from txmsg.errors import MisuseError, shown
from txmsg.settings.catalogue import SettingKind, check_settings, required, setting
from txmsg.settings.common import (
    TlsConfig,
    http_listen_setting,
    http_token_file_setting,
    insecure_setting,
    log_format_setting,
    log_level_setting,
)
from txmsg.settings.tracing import tracing_setting

ALL_TOPICS: Final = ("*",)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}\Z")
_PATTERN = re.compile(r"[A-Za-z0-9._%*?-]{1,127}\Z")


def check_mirror_name(name: str) -> str:
    """Return `name` if it can name a mirror, its slot and its publication; else raise MisuseError."""
    if not _NAME.match(name):
        raise MisuseError(f"mirror {shown(name)}: use a letter and up to 29 of the characters a-z 0-9 _")
    return name


def check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the patterns if they can match topic names; else raise MisuseError."""
    for pattern in patterns:
        if not _PATTERN.match(pattern):
            raise MisuseError(
                f"pattern {shown(pattern)} cannot match a topic name: use A-Z a-z 0-9 . _ - % with * and ?"
            )
    return patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class TailerConfig:
    """The settings of one mirror and its tailer."""

    storage: str = required(
        "The Notify database: postgresql://user@host:5432/database.",
        kind=SettingKind.TEXT,
        metavar="URL",
        option="--storage",
        variable="TXMSG_STORAGE",
    )
    metaq: str = setting(
        "",
        "The log: a directory, created if it is missing, the address of `txmsg metaq serve`, or "
        "kafka://HOST:PORT,...[/PREFIX].",
        metavar="LOG",
        option="--metaq",
        variable="TXMSG_METAQ",
        shown="none; it must be given",
    )
    kafka_config: Path | None = setting(
        None,
        "For Kafka: file with properties of librdkafka, one NAME=VALUE per line: security.protocol, sasl.username ...",
        kind=SettingKind.FILE,
        option="--kafka-config",
        variable="TXMSG_KAFKA_CONFIG",
    )
    replication_factor: int | None = setting(
        None,
        "Replication factor of topics that the tailer creates in Kafka.",
        kind=SettingKind.COUNT,
        least=1,
        option="--replication-factor",
        shown="as the cluster is set",
    )
    min_insync_replicas: int | None = setting(
        None,
        "min.insync.replicas of topics that the tailer creates in Kafka.",
        kind=SettingKind.COUNT,
        least=1,
        option="--min-insync-replicas",
        shown="as the cluster is set",
    )
    mirror: str = setting(
        "metaq",
        "Name of the mirror, its slot and its publication.",
        metavar="NAME",
        option="--name",
    )
    topics: tuple[str, ...] | None = setting(
        None,
        "Topics to mirror, with * and ?; repeatable.",
        kind=SettingKind.TEXTS,
        option="--topics",
        shown="those of the existing mirror, else all",
    )
    exclude: tuple[str, ...] | None = setting(
        None,
        "Topics to exclude; repeatable. '' excludes none.",
        kind=SettingKind.TEXTS,
        option="--exclude",
        shown="those of the existing mirror, else none",
    )
    http_listen: str = http_listen_setting()
    http_token_file: Path | None = http_token_file_setting()
    tls: TlsConfig = field(default_factory=TlsConfig)
    """The TLS settings of `http_listen`."""
    insecure: bool = insecure_setting()
    tracing: bool = tracing_setting("appends of traced messages")
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()
    refill_size_bytes: int = setting(
        4 * 1024 * 1024,
        "Bytes that are read from the table before they are appended.",
        least=1,
        live=True,
    )
    position_s: float = setting(
        1.0,
        "Time between writes of the mirror's position to the database.",
        least=0,
        is_open=True,
        live=True,
    )
    compare_s: float = setting(
        30.0,
        "Time between checks for messages in the table that were not replicated.",
        least=0,
        is_open=True,
        live=True,
    )
    wait_s_max: float = setting(
        5.0,
        "Longest wait between attempts while the database or the log is unavailable.",
        least=0,
        is_open=True,
        live=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        self.tls.check_http_listen(self.http_listen, self.http_token_file, insecure=self.insecure)
        self._check_copies()
        check_mirror_name(self.mirror)
        check_patterns(self.topics or ())
        check_patterns(self.exclude or ())

    def _check_copies(self) -> None:
        factor, least = self.replication_factor, self.min_insync_replicas
        if (factor or least) and not self.metaq.startswith("kafka://"):
            raise MisuseError(
                f"replication_factor and min_insync_replicas are of topics in a Kafka, and metaq is {shown(self.metaq)}"
            )
        if factor and least and least > factor:
            raise MisuseError(
                f"min_insync_replicas = {least} is more than replication_factor = {factor}: nothing could be written; "
                "with 3 copies, ask for 2 in sync"
            )
