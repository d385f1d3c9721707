"""Settings of a log."""

from __future__ import annotations

from dataclasses import dataclass

from txmsg.metaq.store.commit_log import FILE_SIZE_BYTES_MAX
from txmsg.metaq.store.topics import TopicSettings
from txmsg.settings.catalogue import check_settings, setting

_DEFAULT = TopicSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of a log."""

    file_size_bytes_max: int = setting(
        FILE_SIZE_BYTES_MAX,
        "Size of a commitlog file. Retention deletes whole files.",
        least=1,
    )
    flush_s: float = setting(
        0.5,
        "Time after which what timed topics appended is on disk.",
        least=0,
        is_open=True,
        live=True,
    )
    checkpoint_s: float = setting(
        10.0,
        "Time between checkpoints. What was appended since is read again after a crash.",
        least=0,
        is_open=True,
        live=True,
    )
    open_files_max: int = setting(
        16_384,
        "Files of cells kept open; fewer if the process may not open so many and 256 more.",
        least=1,
    )
    retention_s: float | None = setting(
        None,
        "How long to keep messages, by when their file was last written; whole files are deleted. Topics may say "
        "otherwise.",
        least=0,
        option="--retention",
        shown="forever",
        live=True,
    )
    retention_size_bytes: int | None = setting(
        None,
        "Size of all files above which the oldest are deleted, whatever topics say.",
        least=0,
        option="--retention-size",
        shown="unlimited",
        live=True,
    )
    delay_max_s: float = setting(
        3 * 86_400.0,
        "How far ahead delayed messages may be due. While one waits, no file is deleted that came after it.",
        least=0,
        most=366 * 86_400,
        live=True,
    )
    topic: TopicSettings = _DEFAULT
    """What holds for topics that have no settings of their own. Default: synchronous, not compressed."""

    def __post_init__(self) -> None:
        check_settings(self)
