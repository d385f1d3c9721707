"""A page: a function that reads, and a template. The template's block `live` is its live part.

A browser gets the document, and then that block as server-sent events: after each poll of the database, or every
`every_s`. All browsers that look at the same page in the same language share reading and rendering.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from txmsg.errors import (
    BrokerUnavailable,
    MisuseError,
    OutcomeUnknown,
    PermissionDenied,
    TxmsgError,
    UnknownGroup,
    UnknownTopic,
)
from txmsg.ops.console.page_context import PageContext

STREAMS_MAX: Final = 200
STREAMS_OF_USER_MAX: Final = 50
"""Maximum streams of one user who has logged in and is not an administrator."""
_STREAMS_OF_ADMINS: Final = 20
"""Further streams, for administrators only."""
_TICK_S_MAX: Final = 1.5
"""Maximum seconds between two events, also while a page is read. assets/live.js takes a longer silence for a lost
server."""
_SAME: Final = b"event: same\ndata:\n\n"
_KEPT_S: Final = 30.0

Key: TypeAlias = tuple[Hashable, ...]
"""The identity of a live part: user, language and address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A page of one database."""

    path: str
    """The path below the database, with parameters: /brokers/{broker}."""
    section: str
    """The key of its entry in the navigation."""
    template: str
    """The template. It extends layout.html, and has a block `live`; the block `still` is not refreshed."""
    read: Callable[[PageContext], Awaitable[Mapping[str, Any]]]
    """Returns the template's values. Raises the errors of errors.py, which the page then shows instead."""
    every_s: float | None = None
    """Seconds between two readings of a live page. None: at each poll of the database, for pages of its
    snapshot alone."""


@dataclass(frozen=True, slots=True)
class ViewResult:
    """The result of a view's function: values for its template, or the reason why there are none."""

    values: Mapping[str, Any]
    error: TxmsgError | None = None

    @property
    def status(self) -> HTTPStatus:
        """The status of the answer."""
        match self.error:
            case None:
                return HTTPStatus.OK
            case UnknownGroup() | UnknownTopic():
                return HTTPStatus.NOT_FOUND
            case BrokerUnavailable() | OutcomeUnknown():
                return HTTPStatus.SERVICE_UNAVAILABLE
            case PermissionDenied():
                return HTTPStatus.FORBIDDEN
            case MisuseError():
                return HTTPStatus.BAD_REQUEST
            case _:
                return HTTPStatus.INTERNAL_SERVER_ERROR


async def read(view: View, look: PageContext) -> ViewResult:
    """Return the view's current result."""
    look.watch.note_visit()
    if look.watch.snapshot is None and not (look.watch.trouble or look.watch.denied):
        await look.watch.polled(_TICK_S_MAX)  # the first one, just after the start
    try:
        return ViewResult(await view.read(look))
    except TxmsgError as exc:
        return ViewResult({}, exc)


class LiveParts:
    """The live parts of all pages that are open in browsers."""

    def __init__(self) -> None:
        self.streams = 0
        self._streams_of: Counter[str] = Counter()
        """Numbers of streams by user."""
        self.closing = asyncio.Event()
        self._rendered: dict[Key, tuple[float, asyncio.Task[str]]] = {}

    def has_room(self, user: str, *, is_admin: bool) -> bool:
        """Return True if another browser of this user may open a stream; "" stands for visitors without a login."""
        if is_admin:
            return self.streams < STREAMS_MAX + _STREAMS_OF_ADMINS
        return self.streams < STREAMS_MAX and (not user or self._streams_of[user] < STREAMS_OF_USER_MAX)

    def count(self, user: str, streams: int) -> None:
        """Count streams of this user; negative numbers release them."""
        self.streams += streams
        self._streams_of[user] += streams
        if not self._streams_of[user]:
            del self._streams_of[user]

    async def events(  # noqa: PLR0917 - a page, its reader, and until when
        self,
        key: Key,
        view: View,
        look: PageContext,
        render: Callable[[ViewResult], str],
        goes_on: Callable[[], bool],
        user: str = "",
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events: `part` with HTML when it has changed, else `same`. Streams with the same key share
        them.

        Ends when `goes_on` returns False: the visitor has logged out.
        """
        self.count(user, 1)
        last: str | None = None
        try:
            yield b"retry: 1000\n\n"
            while not self.closing.is_set() and goes_on():
                reading = self._shared(key, view, look, render)
                while not (await asyncio.wait({reading}, timeout=_TICK_S_MAX))[0]:  # does not cancel it for others
                    yield _SAME
                html = reading.result()
                yield _SAME if html == last else _event("part", html)
                last = html
                if view.every_s is None:
                    await look.watch.polled(_TICK_S_MAX)
                    continue
                due = time.monotonic() + view.every_s
                while (left_s := due - time.monotonic()) > 0 and not await self._closes(min(left_s, _TICK_S_MAX)):
                    yield _SAME
        finally:
            self.count(user, -1)

    def _shared(
        self, key: Key, view: View, look: PageContext, render: Callable[[ViewResult], str]
    ) -> asyncio.Task[str]:
        now = time.monotonic()
        found = self._rendered.get(key)
        # Half of the interval: viewers share a reading although their streams are not in step, and none shows an old
        # one for a whole interval.
        if found is None or now - found[0] >= (view.every_s or _TICK_S_MAX / 3) / 2:
            self._rendered = {of: each for of, each in self._rendered.items() if now - each[0] < _KEPT_S}

            async def make() -> str:
                return render(await read(view, look))

            found = self._rendered[key] = (now, asyncio.create_task(make()))
        return found[1]

    async def _closes(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                return await self.closing.wait()
        except TimeoutError:
            return False


def _event(name: str, data: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"event: {name}\n{lines}\n".encode()
