"""The file of an agent: how it runs, and its sources. Checked as a whole before anything starts.

log = "metaq:7720"
state_dir = "/var/lib/txmsg-agent"

[source.web]
paths = ["/var/log/nginx/access.log", "/srv/*/app.log"]
topic = "web.access"
"""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

from txmsg.errors import MisuseError, TxmsgError, shown
from txmsg.message import NAME_SIZE_MAX, QUEUES_MAX, check_name, check_tag
from txmsg.metaq.agent.names import COMPRESSED, is_compressed
from txmsg.metaq.agent.records import RecordSplitter
from txmsg.metaq.spool import SIZE_BYTES_MAX, SIZE_BYTES_MIN
from txmsg.runtime.owners import refusal_text
from txmsg.settings.catalogue import (
    COUNT_MAX,
    REQUIRED,
    Setting,
    SettingKind,
    check_settings,
    required,
    setting,
    settings_of,
)
from txmsg.settings.common import (
    TlsConfig,
    http_listen_setting,
    http_token_file_setting,
    log_format_setting,
    log_level_setting,
)

T = TypeVar("T")

_SOURCE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
SOURCES_MAX: Final = 200
_NO_ENCODING: Final = "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Files that are followed, and how their lines are appended."""

    paths: tuple[str, ...] = required(
        "Files to follow: paths, with * ? [] and ** for directories.", kind=SettingKind.TEXTS, option=""
    )
    exclude: tuple[str, ...] = setting(
        (),
        "Names that are not followed, with * and ?. Compressed files never are: "
        f"{' '.join(f'.{ending}' for ending in COMPRESSED)}.",
        kind=SettingKind.TEXTS,
    )
    topic: str = required("Topic to append to.", kind=SettingKind.TEXT, option="")
    queues: int = setting(4, "Queues of the topic. Lines of one path are in one of them.", least=1, most=QUEUES_MAX)
    tag: str = setting("", "Tag of all messages.", shown="none")
    encoding: str = setting(
        _NO_ENCODING,
        "Encoding of the files, as Python names it; messages are converted to UTF-8, with U+FFFD for invalid bytes. "
        "bytes: messages contain the bytes unchanged.",
    )
    start: str = setting(
        "beginning",
        "Where to begin in files that exist when a source first runs. Later files are read from their beginning.",
        choices=("beginning", "end"),
    )
    record_start: str = setting(
        "",
        "Regular expression that matches the beginning of the first line of a record; lines that do not match belong "
        "to the previous record.",
        shown="each line is a record",
    )
    record_size_bytes_max: int = setting(
        1024 * 1024, "Longer records are split into pieces of this size.", least=1024, most=16 * 1024 * 1024
    )
    rest_s: float = setting(
        5.0,
        "Time without growth after which a last line without a line ending, or a last record of several lines, "
        "is sent.",
        least=0,
    )
    linger_s: float = setting(
        0.2, "Time between checks of the files; lines found at a check are one append.", least=0.01, most=60, live=True
    )
    find_s: float = setting(2.0, "Time between checks for new files.", least=0.05, most=3600)
    closed_s: float = setting(
        60.0,
        "Time without growth after which a file is closed that was deleted, or renamed for the second time.",
        least=1,
    )
    batch_size_bytes: int = setting(
        1024 * 1024, "Bytes of lines in one append.", least=4096, most=16 * 1024 * 1024, live=True
    )
    lines_per_s: float = setting(
        0.0, "Lines per second. 0: no limit.", kind=SettingKind.NUMBER, least=0, most=COUNT_MAX, live=True
    )
    paused: bool = setting(False, "Whether reading is paused.", live=True)
    compression: str = setting("lz4", "Compression of appends.", choices=("none", "lz4", "zstd"))
    spool_size_bytes_max: int = setting(
        SIZE_BYTES_MAX,
        "Bytes kept on disk while the log is unavailable. When they are used up, reading stops.",
        least=SIZE_BYTES_MIN,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_name("topic", self.topic)
        if self.tag:
            check_tag(self.tag)
        for path in self.paths:
            if not path.startswith("/"):
                raise MisuseError(f"paths: {shown(path)} is not absolute: begin it with /")
            if is_compressed(path):
                raise MisuseError(
                    f"paths: {shown(path)} names compressed files, which have no lines: follow the files before they "
                    "are compressed"
                )
        if not self.paths:
            raise MisuseError("paths is empty: name a file or a pattern, such as /var/log/app/*.log")
        if self.linger_s > self.rest_s > 0:
            raise MisuseError(
                f"rest_s={self.rest_s:g} is less than linger_s={self.linger_s:g}, when files are looked at"
            )
        self.cutter()

    def cutter(self) -> RecordSplitter:
        """Return the splitter that cuts its files into records."""
        return RecordSplitter(
            record_start=self.record_start,
            record_size_bytes_max=self.record_size_bytes_max,
            encoding="" if self.encoding == _NO_ENCODING else self.encoding,
        )


LIVE: Final = {each.name: each for each in settings_of(SourceConfig, "source") if each.live}
"""Settings of a source that can be changed at run time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of an agent."""

    log: str = required(
        "The log: HOST:PORT or unix:PATH of its server, or a directory, of which the agent is then the only writer.",
        kind=SettingKind.TEXT,
        option="",
    )
    state_dir: Path = required(
        "Directory of positions and spools, used by this agent only.", kind=SettingKind.PATH, option=""
    )
    name: str = setting(
        "",
        "Name of this agent in the ordering keys of messages, and for settings at run time.",
        shown="the host's name",
    )
    control: str = setting("txmsg.agent", "Topic of the log with settings at run time. Empty: none.")
    save_s: float = setting(
        1.0, "Time between saves of positions. Lines read since the last save are sent again after a crash.", least=0.05
    )
    http_listen: str = http_listen_setting()
    http_token_file: Path | None = http_token_file_setting()
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()

    def __post_init__(self) -> None:
        check_settings(self)
        TlsConfig().check_http_listen(self.http_listen, self.http_token_file, insecure=False)
        if self.control:
            check_name("control", self.control)
        check_name("name", self.shown_name())

    def shown_name(self) -> str:
        """Return `name`, or that of the host."""
        return self.name or re.sub(r"[^A-Za-z0-9._-]", "-", platform.node())[:NAME_SIZE_MAX].lstrip(".-") or "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    """The contents of an agent's file."""

    agent: AgentConfig
    sources: Mapping[str, SourceConfig]


def read_agent_file(path: Path) -> AgentFile:
    """Return the agent and its sources. Raises MisuseError, which names file, key, value, rule, and a valid value."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise MisuseError(f"the agent's file {path} cannot be read: {refusal_text(exc, path)}") from exc
    except ValueError as exc:  # TOMLDecodeError, UnicodeDecodeError
        raise MisuseError(f"{path} is not a file of an agent in TOML: {exc}") from exc
    tables = content.pop("source", {})
    agent = _made(AgentConfig, "agent", content, str(path))
    if not isinstance(tables, dict) or not tables:
        raise MisuseError(f"{path} has no source: add a table [source.NAME] with paths and topic")
    if len(tables) > SOURCES_MAX:
        raise MisuseError(f"{path} has {len(tables)} sources: at most {SOURCES_MAX} are allowed; use patterns in paths")
    sources = {}
    for name, table in tables.items():
        if not _SOURCE.fullmatch(name) or not isinstance(table, dict):
            raise MisuseError(
                f"{path}: source.{shown(name)[1:-1]} is not a source: write [source.NAME] with a name of letters, "
                "digits, - and _"
            )
        sources[name] = _made(SourceConfig, "source", table, f"{path} [source.{name}]")
    return AgentFile(agent=agent, sources=sources)


def _made(config: type[T], scope: str, table: Mapping[str, object], place: str) -> T:
    known = {each.name: each for each in settings_of(config, scope)}
    values: dict[str, Any] = {}
    for key, given in table.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise MisuseError(f"{place}: {shown(key)} is not a setting: {hint}")
        values[key] = _value(known[key], given, place)
    for name, each in known.items():
        if name not in values and each.default is REQUIRED:
            raise MisuseError(f"{place}: {name} is missing: {each.meaning}")
    try:
        return config(**values)
    except TxmsgError as exc:
        raise MisuseError(f"the agent's configuration {place}: {exc}") from exc


def _value(each: Setting, given: object, place: str) -> Any:
    try:
        return each.value_of(given)
    except MisuseError as exc:
        raise MisuseError(f"the setting of the agent {place}: {each.name}: {exc}") from exc
