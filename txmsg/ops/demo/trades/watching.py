"""Reads the page as a browser does: its bulletins as they are pushed, and its totals at the end."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from txmsg.ops.demo.trades.page_totals import read_totals
from txmsg.runtime.child import ChildFailed
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

SILENCE_S_MAX = 10.0
"""The page says something every second."""


@dataclass(frozen=True, slots=True)
class Seen:
    """New figures: when they were written, and when the page had pushed them here."""

    written_at: datetime
    seen_at: datetime


class PageWatch:
    """A connection to the page, on a thread of its own; made again when it breaks."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="page-watch", daemon=True)
        self._connection: http.client.HTTPConnection | None = None
        self.bulletin: dict[str, Any] | None = None
        """The last bulletin."""
        self.seen: list[Seen] = []
        """Every change of the figures, in order."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(SILENCE_S_MAX + 5)

    def _run(self) -> None:
        while not self._ending.is_set():
            connection = http.client.HTTPConnection(self.address, timeout=SILENCE_S_MAX)
            try:
                connection.request("GET", "/events")
                self._follow(connection.getresponse())
            except (OSError, http.client.HTTPException) as exc:
                _log.info("demo.page_lost", "the connection to the page is lost: %(error)r", error=exc)
                self._ending.wait(1.0)
            finally:
                connection.close()

    def _follow(self, events: http.client.HTTPResponse) -> None:
        while not self._ending.is_set() and (line := events.readline()):
            if not line.startswith(b"data: "):
                continue
            bulletin = json.loads(line.removeprefix(b"data: "))
            written_at, before = bulletin["written_at"], self.bulletin and self.bulletin["written_at"]
            if written_at is not None and written_at != before:
                self.seen.append(Seen(datetime.fromisoformat(written_at), datetime.now(UTC)))
            self.bulletin = bulletin


def shown_after(seen: Sequence[Seen], written_at: datetime) -> timedelta | None:
    """Return how long after figures were written the page had pushed them, or later ones; None: never."""
    return next((figures.seen_at - written_at for figures in seen if figures.written_at >= written_at), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageReading:
    """Totals of the page, and how they were read: by a `browser`, or over its `connection`."""

    totals: Mapping[str, int]
    read_by: str


def read_page(watch: PageWatch, names: tuple[str, ...], *, with_browser: bool) -> PageReading:
    """Return these totals as the page shows them now. Raises ChildFailed when it shows nothing."""
    totals = read_totals(watch.address, names) if with_browser else None
    if totals is not None:
        return PageReading(totals=totals, read_by="browser")
    figures = watch.bulletin and watch.bulletin["figures"]
    if figures is None:
        raise ChildFailed(f"the page at {watch.address} has shown no figures")
    total = figures["total"]
    return PageReading(totals={name: total[name] for name in names}, read_by="connection")
