"""How the processes of txmsg log: on stderr, a line for each record, whatever others have put into it."""

from __future__ import annotations

import logging
from typing import Final

from txmsg.errors import printable

LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class _Printable(logging.Formatter):
    """Control characters and line ends in a message are escapes: no other text can forge a line of this log."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        return printable(super().formatException(ei), lines=True)  # type: ignore[arg-type]


def log_to_stderr(level: str) -> None:
    """Sets up logging for a process that is txmsg's own."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_log_level(level: str) -> None:
    """From now on, this is the lowest level that is logged."""
    logging.getLogger().setLevel(level.upper())
