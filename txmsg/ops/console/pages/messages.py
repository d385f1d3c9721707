"""Single messages of a Notify database, found by id, key or position, with headers, body and history; erasure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txmsg.administration.life import MessageLives, message_life, messages_from
from txmsg.administration.messages import Erasure, MessagesService, content_of
from txmsg.administration.topics import TopicName, TopicsService
from txmsg.errors import MisuseError, OutcomeExpired, UnknownTopic
from txmsg.message import parse_id
from txmsg.ops.console.actions import Confirmation, ConsoleAction, final_act
from txmsg.ops.console.body import shown_body
from txmsg.ops.console.forms import int_of
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.views import View
from txmsg.wire.start import Start

_FOUND_MAX: Final = 50
_EVENTS_MAX: Final = 500


async def _read(look: PageContext) -> Mapping[str, Any]:
    which, topic, begin = (look.values.get(name, "").strip() for name in ("q", "topic", "from"))
    found, missing = MessageLives(lives=[], more=False), ""
    try:
        if which:
            found = await look.asking(lambda ask: message_life(ask, which, topic=topic, limit=_FOUND_MAX))
        elif topic:
            start, queue = Start.parse(begin or "earliest"), int_of(look, "queue")
            found = await look.asking(lambda ask: messages_from(ask, topic, start, queue=queue, limit=_FOUND_MAX))
            missing = look.t("messages.none_there")
    except (OutcomeExpired, UnknownTopic, MisuseError) as exc:
        missing = str(exc)
    return {"found": found, "missing": missing, "is_by_place": bool(topic) and not which}


async def _read_one(look: PageContext) -> Mapping[str, Any]:
    id_ = look.path["id"]
    found = await look.asking(lambda ask: message_life(ask, id_, limit=1))
    life = found.lives[0]
    content = await look.asking(lambda ask: content_of(ask, life.id))
    return {
        "life": life,
        "is_erasable": content is not None and await _is_erasable(look, life.topic),
        "events": life.events[-_EVENTS_MAX:],
        "content": content,
        "body": shown_body(content.body, look.values.get("form", "")) if content else None,
    }


async def _is_erasable(look: PageContext, topic: str | None) -> bool:
    if topic is None:
        return False
    try:
        found = await look.ask_broker(TopicsService.settings, TopicName(topic=topic))
    except UnknownTopic:  # deleted meanwhile
        return False
    return found.erasable_s is not None


async def _confirm_erase(look: PageContext) -> Confirmation:
    id_, topic = look.path["id"], look.values.get("topic", "")
    parse_id(id_)
    return final_act(look, "messages.erase", "topic", id=id_, topic=topic)


async def _erase(look: PageContext) -> str:
    id_, topic = look.path["id"], look.values.get("topic", "")
    (result,) = (await look.ask_broker(MessagesService.erase, Erasure(topic=topic, ids=[id_]))).results
    if not result.found:
        raise MisuseError(look.t("messages.not_erasable", id=id_, topic=topic))
    return look.t("messages.erased" if result.erased else "messages.erased_before", id=id_)


VIEWS: Final = (
    View(path="/messages", section="find", template="messages.html", read=_read, every_s=5.0),
    View(path="/messages/{id}", section="find", template="message.html", read=_read_one, every_s=2.0),
)
ACTIONS: Final = (
    ConsoleAction(path="/messages/{id}/erase", method="Messages/Erase", confirm=_confirm_erase, perform=_erase),
)
