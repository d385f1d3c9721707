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
        "Time after which appends of timed topics are on disk.",
        least=0,
        is_open=True,
        live=True,
    )
    checkpoint_s: float = setting(
        10.0,
        "Time between checkpoints. Frames appended since the last one are read again after a crash.",
        least=0,
        is_open=True,
        live=True,
    )
    open_files_max: int = setting(
        16_384,
        "Cell files kept open; fewer if the limit of open files, minus 256, is lower.",
        least=1,
    )
    retention_s: float | None = setting(
        None,
        "Time to keep messages, counted from the last write to their file; whole files are deleted. Topics can "
        "override it.",
        least=0,
        option="--retention",
        shown="forever",
        live=True,
    )
    retention_size_bytes: int | None = setting(
        None,
        "Size of all files above which the oldest are deleted, regardless of the settings of topics.",
        least=0,
        option="--retention-size",
        shown="unlimited",
        live=True,
    )
    delay_max_s: float = setting(
        3 * 86_400.0,
        "Longest delay of a message. While a message waits, no later file is deleted.",
        least=0,
        most=366 * 86_400,
        live=True,
    )
    topic: TopicSettings = _DEFAULT
    """Settings of topics that have none of their own. Default: synchronous, not compressed."""

    def __post_init__(self) -> None:
        check_settings(self)
