"""The HTTP application: pages with their live parts, actions, operations, preferences, assets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from txmsg.errors import MisuseError, TxmsgError
from txmsg.ops.console.action_links import offer_of
from txmsg.ops.console.actions import ConsoleAction
from txmsg.ops.console.logs import NamedLog
from txmsg.ops.console.operations import ConsoleOperation, ConsoleOperations
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.pages import ACTIONS, VIEWS
from txmsg.ops.console.pages.databases import DATABASES
from txmsg.ops.console.render import Renderer
from txmsg.ops.console.sections import SECTIONS
from txmsg.ops.console.user_databases import UserDatabase, UserDatabases
from txmsg.ops.console.views import LiveParts, View, ViewResult, read
from txmsg.ops.page.guard import RequestGuard
from txmsg.ops.page.language import LANGUAGES, language_of
from txmsg.ops.page.login import LoginForm, LoginMiddleware, asked_for, form_of, local_path, visit_of
from txmsg.ops.page.page import ASSETS as PAGE_ASSETS
from txmsg.ops.page.sessions import LoginSessions

_ASSETS: Final = Path(__file__).parent / "assets"
_THEMES: Final = ("system", "light", "dark")
_FILES: Final = ("/assets/", "/uplot/")
FORM_SIZE_BYTES_MAX: Final = 1024 * 1024
_COOKIE_S: Final = 365 * 86_400


@dataclass(frozen=True, kw_only=True)
class Console:
    """The parts that all requests share."""

    desks: UserDatabases
    sessions: LoginSessions[UserDatabase]
    logs: Mapping[str, Mapping[str, NamedLog]]
    """Logs by database and name: a log gets the tokens of visitors of its own database only."""
    operations: ConsoleOperations
    live: LiveParts
    renderers: Mapping[str, Renderer]
    is_local: bool = True
    """True if only this machine reaches the console, by a name of this machine."""


def new_app(console: Console) -> ASGIApp:
    """Return the application."""
    api = _ConsoleApi(console)
    paths = {view.path for view in VIEWS}
    routes: list[Route | Mount] = [
        Route("/", api.home),
        Route("/preferences", api.prefer, methods=["POST"]),
        Route("/operations/{number:int}", api.operation),
        Route("/operations/{number:int}/stop", api.operation, methods=["POST"]),
        Mount("/assets", StaticFiles(directory=_ASSETS)),
        Mount("/uplot", StaticFiles(directory=PAGE_ASSETS / "uplot")),
    ]
    # Actions first: /brokers/{broker}/drain is no page.
    routes += [
        Route("/{database}" + action.path, api.acting(action), methods=["GET", "POST"])
        for action in ACTIONS
        if action.path not in paths
    ]
    routes += [Route("/{database}" + view.path, api.showing(view)) for view in VIEWS]
    app = Starlette(routes=routes, exception_handlers={HTTPStatus.NOT_FOUND.value: api.not_found})
    entrance = LoginForm(
        title="txmsg",
        places=list(console.desks.open),
        sign_in=console.desks.sign_in,
        is_needed=console.desks.is_needed,
        is_over=lambda desk: desk.is_refused,
        open_paths=_FILES,
        language=lambda request: api.renderer(request).language,
        theme=theme_of,
    )
    # Not as its middleware: that does not see the answer to what fails unexpectedly.
    return RequestGuard(LoginMiddleware(app, entrance, console.sessions), files=_FILES, only_loopback=console.is_local)


Handler = Callable[[Request], Any]


class _ConsoleApi:
    def __init__(self, console: Console) -> None:
        self._console = console
        has_view = {view.path for view in VIEWS}
        self._sections = [section for section in SECTIONS if section.path in has_view]

    # ---- pages

    async def home(self, request: Request) -> Response:
        names = list(self._console.desks.open)
        if len(names) == 1:
            return RedirectResponse(f"/{quote(names[0])}", HTTPStatus.FOUND)
        return await self._show(DATABASES, request, self._page_context(request, names[0], dict(request.query_params)))

    def showing(self, view: View) -> Handler:
        """Return the handler of a page."""

        async def show(request: Request) -> Response:
            look = self._named(request, dict(request.query_params))
            return self._missing(request) if look is None else await self._show(view, request, look)

        return show

    async def not_found(self, request: Request, _: Exception) -> Response:
        return self._missing(request)

    async def _show(self, view: View, request: Request, look: PageContext) -> Response:
        def render_part(reading: ViewResult) -> str:
            template = view.template if reading.error is None else "trouble.html"
            return look.renderer.block(template, "live", self._values(request, look, view.section, reading))

        if "text/event-stream" in request.headers.get("accept", ""):
            live = self._console.live
            user = "" if look.desk.who is None else look.desk.owner
            if not live.has_room(user, is_admin=look.desk.is_of_admin):
                return PlainTextResponse("too many browsers look\n", HTTPStatus.SERVICE_UNAVAILABLE)
            session = visit_of(request).session
            # Desks are part of the key: visitors with different rights never share a rendered part (decision 0070).
            key = (*look.desks.values(), look.renderer.language, asked_for(request))
            return StreamingResponse(
                live.events(
                    key,
                    view,
                    look,
                    render_part,
                    lambda: session is None or (session.is_open and not look.desk.is_refused),
                    user,
                ),
                media_type="text/event-stream",
                headers={"X-Accel-Buffering": "no"},
            )
        reading = await read(view, look)
        template = view.template if reading.error is None else "trouble.html"
        values = self._values(request, look, view.section, reading)
        return HTMLResponse(look.renderer.page(template, values), reading.status)

    def _missing(self, request: Request) -> Response:
        look = self._page_context(request, next(iter(self._console.desks.open)), {})
        values = self._values(request, look, "", ViewResult({}))
        return HTMLResponse(look.renderer.page("missing.html", values), HTTPStatus.NOT_FOUND)

    def _values(self, request: Request, look: PageContext, section: str, reading: ViewResult) -> dict[str, Any]:
        return {
            "look": look,
            "url": look.url,
            "offer": partial(offer_of, look),
            "watch": look.watch,
            "sections": self._sections,
            "section": section,
            "theme": theme_of(request),
            "csrf": visit_of(request).csrf,
            "here": asked_for(request),
            "running": sum(not each.is_over for each in self._console.operations.of(look.owners)),
            "error": reading.error,
            **reading.values,
        }

    # ---- actions and operations

    def acting(self, action: ConsoleAction) -> Handler:
        """Return the handler of an action: GET asks, POST does it."""

        async def act(request: Request) -> Response:
            posted = request.method == "POST"
            values = await self._posted(request) if posted else dict(request.query_params)
            if isinstance(values, Response):
                return values
            look = self._named(request, values)
            if look is None:
                return self._missing(request)
            try:
                if posted:
                    return self._done(look, await action.perform(look))
                # Only for the dialog. A POST is decided by the brokers, with the visitor's token (decision 0070).
                if (refusal := action.refusal(look.who, {**look.path, **values})) is not None:
                    raise refusal
                confirmation, error = await action.confirm(look), None
            except TxmsgError as exc:
                confirmation, error = None, exc
            dialog = {"confirmation": confirmation, "error": error, "action": quote(request.scope["path"])}
            return HTMLResponse(look.renderer.page("dialog.html", dialog))

        return act

    def _done(self, look: PageContext, result: str | ConsoleOperation) -> Response:
        if isinstance(result, ConsoleOperation):
            return HTMLResponse(look.renderer.page("operation.html", {"operation": result}))
        return _nothing({"txmsg:done": {"text": result}})

    async def operation(self, request: Request) -> Response:
        owners = self._page_context(request, next(iter(self._console.desks.open)), {}).owners
        operation = self._console.operations.find_operation(request.path_params["number"], owners)
        if operation is None:
            return self._missing(request)
        if request.method == "POST":
            values = await self._posted(request)
            if isinstance(values, Response):
                return values
            operation.stop()
        return HTMLResponse(self.renderer(request).page("operation.html", {"operation": operation}))

    # ---- preferences

    async def prefer(self, request: Request) -> Response:
        """Keep theme and language in cookies, and redirect back."""
        values = await self._posted(request)
        if isinstance(values, Response):
            return values
        response = RedirectResponse(local_path(values.get("back", "/")), HTTPStatus.SEE_OTHER)
        for name, allowed in (("theme", _THEMES), ("language", tuple(LANGUAGES))):
            if values.get(name) in allowed:
                response.set_cookie(f"txmsg-{name}", values[name], max_age=_COOKIE_S, httponly=True, samesite="strict")
        return response

    # ---- requests

    async def _posted(self, request: Request) -> dict[str, str] | Response:
        """Return the values that a form of this visit posted, or the refusal of any other. Called first for
        every POST.
        """
        values = await form_of(request, FORM_SIZE_BYTES_MAX)
        if values is None:
            return PlainTextResponse("the form is too large\n", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if visit_of(request).has_csrf(request, values):
            return values
        renderer = self.renderer(request)
        dialog = {"confirmation": None, "error": MisuseError(renderer.text("dialog.old_page")), "action": ""}
        return HTMLResponse(renderer.page("dialog.html", dialog), HTTPStatus.FORBIDDEN)

    def renderer(self, request: Request) -> Renderer:
        """Return the renderer of the chosen language, or of the one that the browser prefers."""
        chosen = request.cookies.get("txmsg-language", "")
        accepted = language_of(request.headers.get("accept-language", ""))
        return self._console.renderers[chosen if chosen in LANGUAGES else accepted]

    def _named(self, request: Request, values: Mapping[str, str]) -> PageContext | None:
        name = request.path_params["database"]
        return self._page_context(request, name, values) if name in self._console.desks.open else None

    def _page_context(self, request: Request, database: str, values: Mapping[str, str]) -> PageContext:
        console = self._console
        session = visit_of(request).session
        # The visitor's own desk, with the rights of the token, replaces the shared one of the same database.
        desks = {**console.desks.open, **({} if session is None else session.at)}
        desk = desks[database]
        return PageContext(
            desk=desk,
            desks=desks,
            operations=console.operations,
            logs=console.logs.get(database, {}),
            renderer=self.renderer(request),
            path={name: str(value) for name, value in request.path_params.items()},
            values=values,
        )


def theme_of(request: Request) -> str:
    """Return the theme that the browser keeps in a cookie."""
    theme = request.cookies.get("txmsg-theme", "")
    return theme if theme in _THEMES else "system"


def _nothing(events: Mapping[str, object]) -> Response:
    """Return an answer without content, with events for the page."""
    return Response(status_code=HTTPStatus.NO_CONTENT, headers={"HX-Trigger": json.dumps(events)})


def all_renderers() -> dict[str, Renderer]:
    """Return a renderer for each language."""
    return {language: Renderer(language) for language in LANGUAGES}
