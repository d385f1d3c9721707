"""Events that txmsg logs, each with a stable name and its ids as fields, and their formatters: text and JSON.

Everything goes through `logging`. A record of txmsg has one attribute more than others, `txmsg`: a mapping with the
name of the event and its fields. docs/events.md lists all events; it is made from the calls of `EventLog` in the code.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

from txmsg.errors import printable

__all__ = ["JsonFormatter"]

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

_AGAIN_S: Final = 3600.0

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class EventLog:
    """The logger of a module. Each call names the event, and its text refers to fields: `group %(group)s pauses`.

    Fields that the text does not name are in the record all the same. Text and fields meet only when a handler writes
    the record, inside `logging`. A filter that raises is reported on stderr, as `logging` reports a handler that does:
    logging must not break the work that it reports.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, text: str, **fields: object) -> None:
        """Log a detail that matters only in the search for a fault."""
        self._log(logging.DEBUG, event, text, fields)

    def info(self, event: str, text: str, **fields: object) -> None:
        """Log normal operation."""
        self._log(logging.INFO, event, text, fields)

    def warning(self, event: str, text: str, *, exc_info: BaseException | bool | None = None, **fields: object) -> None:
        """Log a condition that may pass by itself."""
        self._log(logging.WARNING, event, text, fields, exc_info)

    def error(self, event: str, text: str, **fields: object) -> None:
        """Log a condition that needs an operator."""
        self._log(logging.ERROR, event, text, fields)

    def exception(self, event: str, text: str, **fields: object) -> None:
        """Log as `error` does, with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, text, fields, exc_info=True)

    def log(self, level: int, event: str, text: str, **fields: object) -> None:
        """Log as the method of this level does."""
        self._log(level, event, text, fields)

    def _log(
        self,
        level: int,
        event: str,
        text: str,
        fields: Mapping[str, object],
        exc_info: BaseException | bool | None = None,
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        # One attribute, with our name: a record factory of the application's may have set any other one, and then
        # `logging` would raise here. The third frame is that of the caller.
        extra = {"txmsg": {"event": event, **fields}}
        args = (fields,) if fields else ()
        try:
            self._logger.log(level, text, *args, exc_info=exc_info, extra=extra, stacklevel=3)
        except Exception:  # noqa: BLE001 - the application's: a filter, a handler without a guard, a factory of records
            if logging.raiseExceptions:  # as `logging` does, which asks for it, too
                with suppress(Exception):
                    traceback.print_exc()


class HourlyLog:
    """A logger of lasting conditions: logs each event as an error, at most once an hour."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._logged_at: dict[str, float] = {}  # bounded by the number of events

    def error(self, event: str, text: str, **fields: object) -> None:
        """Log as `EventLog.error` does, unless this event was logged within the hour."""
        now = time.monotonic()
        if now - self._logged_at.get(event, -_AGAIN_S) >= _AGAIN_S:
            self._logged_at[event] = now
            self._log.error(event, text, **fields)


class TextFormatter(logging.Formatter):
    """A line for each record, and the lines of a traceback.

    Control characters and line ends in a message are written as escapes: no text of others can forge a line.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 - logging's name
        return printable(super().formatException(ei), lines=True)


class JsonFormatter(logging.Formatter):
    """A JSON object on one line for each record: time, level, logger, event, message, the fields of the event.

    Records of other libraries have no event. time is RFC 3339, in UTC; exception is a traceback. Records within a
    sampled span of OpenTelemetry have its trace_id and span_id. Characters that are not ASCII are written as escapes;
    numbers that JSON does not support, such as nan, are strings.

    process: the name of the process in each line, such as "user-service".
    """

    def __init__(self, *, process: str = "") -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if self.process:
            line["process"] = self.process
        fields = _fields_of(record)
        if fields:
            line["event"] = fields.pop("event")
        line["message"] = record.getMessage()
        line |= _span_fields()
        line |= fields
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        try:
            return json.dumps(line, default=_text, allow_nan=False)
        except (TypeError, ValueError, RecursionError):  # also of keys that are no text, and of circles
            return json.dumps({name: _simple(value) for name, value in line.items()})


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the event and its fields; {} if another logger uses the attribute for something else."""
    found = getattr(record, "txmsg", None)
    if not isinstance(found, dict) or not isinstance(found.get("event"), str):
        return {}
    return dict(found) if all(isinstance(name, str) for name in found) else {}


def _span_fields() -> dict[str, str]:
    """Return the ids of the current span, in a process that uses OpenTelemetry. Imports nothing: most do not use it."""
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    context = current().get_span_context() if current is not None else None
    if context is None or not (context.is_valid and context.trace_flags.sampled):
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def _simple(value: object) -> object:
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - of a class of the application; the line is written all the same
        return f"<{type(value).__name__}, whose __str__ raised>"


class StderrLines:
    """Writes lines of other processes' logs to stderr. Threads may share it.

    It never raises: a full disk, or a reader of stderr that is gone, must not end the thread that reads a log, because
    the process that writes it would then fail at its next line. Once lines are written again, it says what happened.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed = ""

    def __call__(self, line: str) -> None:
        with self._lock:
            try:
                if self._failed:
                    print(f"lines may be missing here: {self._failed}", file=sys.stderr, flush=True)
                    self._failed = ""
                print(line, file=sys.stderr, flush=True)
            except (OSError, ValueError) as exc:  # ValueError: it is closed
                self._failed = str(exc)


def logger_of_application(module: str) -> logging.Logger:
    """Return the logger of an application's module, which logs texts of its own and no events."""
    return logging.getLogger(module)


def log_to_stderr(level: str, form: str = "text") -> None:
    """Set up logging for a process of txmsg's own."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_log_level(level: str, *, of: str | None = None) -> None:
    """Set the lowest level that is logged, by all loggers or by the logger `of`."""
    logging.getLogger(of).setLevel(level.upper())


def name_process(name: str) -> None:
    """Set the name of the process in each line of JSON, such as "broker broker-2"."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonFormatter):
            handler.formatter.process = name
