"""The health of a pipeline's parts, read from a file that their supervisor replaces every second or so.

A file, because any program can write it, in any language, also one that ends before the page does:

    {"parts": {"broker": true, "tailer": false}, "measures": {"waiting": 12, "tailer_s": 0.02}}
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_HEALTH_S_MAX: Final = 5.0
_SIZE_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of each part, up or down (None: unknown), and measurements."""

    parts: Mapping[str, bool | None]
    measures: Mapping[str, float]


class HealthFile:
    """A reader of the file of `--health`. Parts of a file that is no longer updated are unknown."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._health = Health(parts={}, measures={})
        self._written: tuple[int, int] | None = None
        self._new_at = clock()
        self._trouble: str | None = None

    def read(self) -> Health:
        """Return the health now. Never raises: values that cannot be read are unknown, and logged once."""
        try:
            stat = self._path.stat()
            written = (stat.st_mtime_ns, stat.st_ino)
            if written != self._written:
                self._health = _health(self._path, stat.st_size)
                self._written, self._new_at, self._trouble = written, self._clock(), None
        except (OSError, ValueError, RecursionError) as exc:
            self._log_failure(f"{type(exc).__name__}: {exc}")
        if self._clock() - self._new_at <= _HEALTH_S_MAX:
            return self._health
        return Health(parts=dict.fromkeys(self._health.parts), measures={})

    def _log_failure(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.warning(
                "page.health_unreadable",
                "the health of the parts cannot be read from %(path)s: %(error)s",
                path=self._path,
                error=trouble,
            )
        self._trouble = trouble


def _health(path: Path, size_bytes: int) -> Health:
    """Parse the file. Raises OSError, or ValueError for a form other than the module's."""
    if size_bytes > _SIZE_BYTES_MAX:
        raise ValueError(f"it has {size_bytes} bytes, of which at most {_SIZE_BYTES_MAX} are read")
    found = json.loads(path.read_bytes())
    parts, measures = _object(found, "parts"), _object(found, "measures")
    if not all(is_up is None or isinstance(is_up, bool) for is_up in parts.values()):
        raise ValueError(f"a part is true (up), false (down) or null (unknown): {parts}")
    if not all(map(_is_number, measures.values())):
        raise ValueError(f"a measure is a finite number: {measures}")
    return Health(parts=parts, measures=measures)


def _is_number(found: object) -> bool:
    """Return True for finite numbers: Python's JSON has NaN and Infinity, and browsers cannot parse a bulletin with
    them.
    """
    return isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < math.inf


def _object(found: object, name: str) -> dict[str, Any]:
    value = found.get(name) if isinstance(found, dict) else None
    if not isinstance(value, dict):
        raise ValueError(f"{name!r} is not an object in it")
    return value
