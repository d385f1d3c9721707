"""Single messages of a Notify database: found by id or key, with headers, body and the life of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txmsg.administration.life import MessageLife
from txmsg.console.body import shown_body
from txmsg.console.look import Look
from txmsg.console.views import View
from txmsg.errors import OutcomeExpired

_FOUND_MAX: Final = 50
_EVENTS_MAX: Final = 500


async def _read(look: Look) -> Mapping[str, Any]:
    which, topic = look.values.get("q", "").strip(), look.values.get("topic", "").strip()
    lives: list[MessageLife] = []
    more, missing = False, ""
    if which:
        try:
            found = await look.notify(lambda notify: notify.message_life(which, topic=topic, limit=_FOUND_MAX))
            lives, more = list(found.lives), found.more
        except OutcomeExpired as exc:
            missing = str(exc)
    return {"lives": lives, "more": more, "missing": missing, "search": which, "topic": topic}


async def _read_one(look: Look) -> Mapping[str, Any]:
    id_ = look.path["id"]
    found = await look.notify(lambda notify: notify.message_life(id_, limit=1))
    life = found.lives[0]
    content = await look.notify(lambda notify: notify.message_content(life.id))
    return {
        "life": life,
        "events": life.events[-_EVENTS_MAX:],
        "headers": content[0] if content else {},
        "body": shown_body(content[1], look.values.get("form", "")) if content else None,
    }


VIEWS: Final = (
    View(path="/messages", section="find", template="messages.html", read=_read, every_s=5.0),
    View(path="/messages/{id}", section="find", template="message.html", read=_read_one, every_s=2.0),
)
ACTIONS: Final = ()
