"""Dead letters of a Notify database: filter, inspect, redrive and purge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txmsg.administration.dead_letters import DeadLetterFilter, DeadLetterQuery, DeadLettersService, Selection
from txmsg.errors import MisuseError
from txmsg.ops.console.actions import Confirmation, ConsoleAction, Field
from txmsg.ops.console.body import shown_body
from txmsg.ops.console.forms import float_of, names, time_of
from txmsg.ops.console.operations import ConsoleOperation
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.views import View

PAGE_MAX: Final = 50
_FILTER: Final = tuple(names(DeadLetterFilter))


def _which(look: PageContext) -> DeadLetterFilter:
    """Return the form's filter. Raises MisuseError for an invalid time."""
    given: dict[str, Any] = {name: look.values.get(name, "").strip() for name in _FILTER}
    return DeadLetterFilter(**given | {"since": time_of(look, "since"), "until": time_of(look, "until")})


def _given(look: PageContext) -> dict[str, str]:
    """Return the filter as it was typed."""
    return {name: value for name in _FILTER if (value := look.values.get(name, "").strip())}


async def _read(look: PageContext) -> Mapping[str, Any]:
    which, page = _which(look), look.values.get("page", "")
    found = await look.ask_broker(DeadLettersService.list, DeadLetterQuery(which=which, limit=PAGE_MAX, after=page))
    given = _given(look)
    of_all = {"group": ""} | given  # without a group, it is for all of them
    return {"letters": found.letters, "next": found.next, "given": given, "of_all": of_all}


async def _read_one(look: PageContext) -> Mapping[str, Any]:
    group, id_ = look.path["group"], look.path["id"]
    which = DeadLetterFilter(group=group, id=id_)
    found = await look.ask_broker(DeadLettersService.list, DeadLetterQuery(which=which, limit=1, whole=True))
    if not found.letters:
        raise MisuseError(look.t("dead_letters.gone", id=id_, group=group))
    letter = found.letters[0]
    return {"letter": letter, "body": shown_body(letter.body, look.values.get("form", ""))}


# ---- redrive and purge: by the filter of the page


async def _select(look: PageContext) -> Selection:
    which = _which(look)
    # An empty form is more likely a mistake than the wish to redrive or purge every group.
    if which == DeadLetterFilter():
        raise MisuseError(look.t("dead_letters.which_one"))
    return await look.ask_broker(DeadLettersService.count, which)


def _filter_fields(look: PageContext, selection: Selection) -> list[Field]:
    """Return the filter, up to now: it excludes messages that die before the button is pressed."""
    assert selection.which.until is not None
    times = {name: time.isoformat() for name in ("since", "until") if (time := getattr(selection.which, name))}
    return [Field(name=name, kind="hidden", value=value) for name, value in (_given(look) | times).items()]


def _named(look: PageContext) -> str:
    return ", ".join(f"{look.t(f'dead_letters.{name}')}: {value}" for name, value in _given(look).items())


async def _confirm_redrive(look: PageContext) -> Confirmation:
    selection = await _select(look)
    return Confirmation(
        title=look.t("dead_letters.redrive_title", count=f"{selection.count:,}"),
        says=[look.t("dead_letters.of", which=_named(look)), look.t("dead_letters.redrive_says")],
        button=look.t("dead_letters.redrive"),
        fields=[
            *_filter_fields(look, selection),
            Field(
                name="rate",
                label=look.t("dead_letters.rate"),
                kind="number",
                value=look.values.get("rate", ""),
                help=look.t("dead_letters.rate_help"),
            ),
        ],
    )


async def _redrive(look: PageContext) -> ConsoleOperation:
    selection, rate = await _select(look), float_of(look, "rate")
    if rate is not None and rate < 0.1:
        raise MisuseError(look.t("dead_letters.rate_too_low"))
    title = look.t("dead_letters.redriving", which=_named(look))
    return look.start(title, selection.count, lambda notify: notify.redrive(selection, rate=rate))


async def _confirm_purge(look: PageContext) -> Confirmation:
    selection = await _select(look)
    return Confirmation(
        title=look.t("dead_letters.purge_title", count=f"{selection.count:,}"),
        says=[look.t("dead_letters.of", which=_named(look)), look.t("dead_letters.purge_says")],
        button=look.t("dead_letters.purge"),
        is_danger=True,
        fields=_filter_fields(look, selection),
    )


async def _purge(look: PageContext) -> ConsoleOperation:
    selection = await _select(look)
    title = look.t("dead_letters.purging", which=_named(look))
    return look.start(title, selection.count, lambda notify: notify.purge(selection))


VIEWS: Final = (
    View(path="/dead-letters", section="dead_letters", template="dead_letters.html", read=_read, every_s=3.0),
    View(
        path="/dead-letters/{group}/{id}",
        section="dead_letters",
        template="dead_letter.html",
        read=_read_one,
        every_s=10.0,
    ),
)
ACTIONS: Final = (
    ConsoleAction(
        path="/dead-letters/redrive", method="DeadLetters/Redrive", confirm=_confirm_redrive, perform=_redrive
    ),
    ConsoleAction(path="/dead-letters/purge", method="DeadLetters/Purge", confirm=_confirm_purge, perform=_purge),
)
