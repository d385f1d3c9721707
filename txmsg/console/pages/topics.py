"""The topics of a Notify database: contents, queues, groups and settings; create, change and delete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from txmsg.administration.topics import DURABILITIES, PERMISSIONS, UNREAD, TopicChange, TopicSettings
from txmsg.console.actions import Action, Confirmation, Field, deletion
from txmsg.console.forms import duration_of, float_of, int_of, names
from txmsg.console.look import Look
from txmsg.console.views import View
from txmsg.message import MESSAGE_TYPES
from txmsg.runtime.durations import shown_duration

PAGE_MAX: Final = 100
_GROUPS_MAX: Final = 100
"""How many groups a topic is shown with, those furthest behind; a topic may have 10,000."""


async def _read(look: Look) -> Mapping[str, Any]:
    search, after = look.values.get("q", ""), look.values.get("after", "")
    found = await look.topics(lambda topics: topics.list(PAGE_MAX, after=after, contains=search))
    rates = look.snapshot.each_rate("txmsg_topic_messages_total") if look.watch.snapshot else {}
    return {
        "topics": found.topics,
        "rates": {topic: rate for (topic,), rate in rates.items()},
        "next": found.next,
        "search": search,
    }


async def _read_one(look: Look) -> Mapping[str, Any]:
    topic = look.path["topic"]
    found = await look.topics(lambda topics: topics.show(topic))
    rates = look.snapshot.each_rate("txmsg_topic_messages_total") if look.watch.snapshot else {}
    groups = sorted(found.groups, key=lambda group: (-group.waiting, -group.dead, group.group))[:_GROUPS_MAX]
    schemas = await look.schemas(lambda schemas: list(schemas.list(topic)))
    return {
        "topic": found,
        "groups": groups,
        "rate": rates.get((topic,)),
        "schemas": schemas,
        "latest_schema": json.dumps(schemas[-1].schema, indent=2, ensure_ascii=False) if schemas else "",
    }


# ---- create, change, delete


async def _confirm_create(look: Look) -> Confirmation:
    return Confirmation(
        title=look.t("topics.create_title"),
        says=[look.t("topics.create_says")],
        button=look.t("topics.create"),
        fields=[
            Field(name="topic", label=look.t("topics.name"), is_required=True),
            Field(
                name="queues",
                label=look.t("topics.queues"),
                kind="number",
                help=look.t("topics.queues_help"),
            ),
            Field(
                name="message_type",
                label=look.t("topics.message_type"),
                kind="select",
                choices=[(each, look.t(f"topics.message_type_{each}")) for each in MESSAGE_TYPES],
            ),
            Field(name="erasable_s", label=look.t("topics.erasable_s"), help=look.t("topics.erasable_help")),
        ],
    )


async def _create(look: Look) -> str:
    topic, queues = look.values.get("topic", "").strip(), int_of(look, "queues")
    erasable_s, message_type = duration_of(look, "erasable_s"), look.values.get("message_type")
    count, _, created = await look.topics(
        lambda topics: topics.create(topic, queues, erasable_s=erasable_s, message_type=message_type)
    )
    return look.t("topics.created" if created else "topics.existed", topic=topic, queues=count)


async def _confirm_alter(look: Look) -> Confirmation:
    topic = look.path["topic"]
    found = await look.topics(lambda topics: topics.show(topic))
    settings = found.settings
    change = _change(look, settings)
    says = [
        look.t(
            "topics.alter_one",
            name=look.t(f"topics.{name}"),
            old=_shown(look, name, _now(settings, name)),
            new=_shown(look, name, new),
        )
        for name in names(TopicChange)
        if (new := getattr(change, name)) is not None
    ]
    return Confirmation(
        title=look.t("topics.alter_title", topic=topic),
        says=says or [look.t("topics.alter_says")],
        button=look.t("topics.alter"),
        fields=[
            *(
                Field(
                    name=name,
                    label=look.t(f"topics.{name}"),
                    kind="number",
                    value=_given(look, settings, name),
                    affects=True,
                )
                for name in ("queues", "write_queues", "read_queues", "ordered_queues", "send_rate_max")
            ),
            *(
                Field(
                    name=name,
                    label=look.t(f"topics.{name}"),
                    kind="select",
                    value=_given(look, settings, name),
                    choices=[(each, look.t(f"topics.{name}_{each}")) for each in choices],
                    affects=True,
                )
                for name, choices in (
                    ("permission", PERMISSIONS),
                    ("durability", DURABILITIES),
                    ("unread", UNREAD),
                    ("message_type", MESSAGE_TYPES),
                    ("journal", ("on", "off")),
                )
            ),
            Field(
                name="erasable_s",
                label=look.t("topics.erasable_s"),
                value=_given(look, settings, "erasable_s"),
                help=look.t("topics.erasable_alter_help"),
                affects=True,
            ),
        ],
    )


async def _alter(look: Look) -> str:
    topic = look.path["topic"]
    settings = (await look.topics(lambda topics: topics.show(topic))).settings
    change = _change(look, settings)
    if change == TopicChange():
        return look.t("topics.alter_nothing")
    await look.topics(lambda topics: topics.alter(topic, change))
    return look.t("topics.altered", topic=topic)


def _change(look: Look, settings: TopicSettings) -> TopicChange:
    """What the form says and the topic has not."""
    if "permission" not in look.values:
        return TopicChange()
    wanted: dict[str, Any] = {
        name: int_of(look, name) for name in ("queues", "write_queues", "read_queues", "ordered_queues")
    }
    wanted |= {name: look.values.get(name) for name in ("permission", "durability", "unread", "message_type")}
    wanted["erasable_s"] = duration_of(look, "erasable_s")
    wanted["send_rate_max"] = float_of(look, "send_rate_max") or 0.0
    wanted["journal"] = look.values["journal"] == "on" if "journal" in look.values else None
    return TopicChange(**{name: new for name, new in wanted.items() if new != _now(settings, name)})


def _now(settings: TopicSettings, name: str) -> Any:
    """A setting as a TopicChange would give it."""
    if name == "journal":
        return settings.journal_since is not None
    return settings.send_rate_max or 0.0 if name == "send_rate_max" else getattr(settings, name)


def _given(look: Look, settings: TopicSettings, name: str) -> str:
    if name == "erasable_s":
        return look.values.get(name, "" if settings.erasable_s is None else shown_duration(settings.erasable_s))
    return look.values.get(name, _text(_now(settings, name)))


def _text(value: object) -> str:
    """As the form's fields have it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _shown(look: Look, name: str, value: Any) -> str:
    """As a sentence has it."""
    if name == "send_rate_max" and not value:
        return look.t("lists.unlimited")
    if name == "erasable_s":
        return look.t("topics.erasable_for", time=shown_duration(value)) if value else look.t("topics.erasable_no")
    return look.t(f"topics.journal_{_text(value)}") if name == "journal" else _text(value)


async def _confirm_delete(look: Look) -> Confirmation:
    topic = look.path["topic"]
    found = await look.topics(lambda topics: topics.show(topic))
    unread, dead = sum(each.waiting for each in found.groups), sum(each.dead for each in found.groups)
    says = [
        look.t("topics.delete_says", kept=f"{found.kept:,}", queues=found.settings.queues),
        look.t("topics.delete_left", halves=found.halves, scheduled=found.scheduled, unread=f"{unread:,}", dead=dead),
    ]
    if found.settings.permission in {"rw", "w"}:
        says.append(look.t("topics.delete_closed_first"))
    return deletion(look, "topics", topic, says)


async def _delete(look: Look) -> str:
    topic, force = look.path["topic"], bool(look.values.get("force"))
    await look.topics(lambda topics: topics.delete(topic, force=force))
    return look.t("topics.deleted", topic=topic)


VIEWS: Final = (
    View(path="/topics", section="topics", template="topics.html", read=_read, every_s=2.0),
    View(path="/topics/{topic}", section="topics", template="topic.html", read=_read_one, every_s=2.0),
)
ACTIONS: Final = (
    Action(path="/new/{kind}", method="Admin/CreateTopic", confirm=_confirm_create, perform=_create),
    Action(path="/topics/{topic}/alter", method="Topics/Alter", confirm=_confirm_alter, perform=_alter),
    Action(path="/topics/{topic}/delete", method="Topics/Delete", confirm=_confirm_delete, perform=_delete),
)
