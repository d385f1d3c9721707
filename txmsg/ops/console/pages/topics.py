"""The topics of a Notify database: contents, queues, groups and settings; create, change and delete."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from txmsg.administration.fields import ChangeField, settings_of
from txmsg.administration.schemas import SchemaQuery, SchemasService
from txmsg.administration.topics import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    TopicChange,
    TopicName,
    TopicQuery,
    TopicsService,
    TopicWithSettings,
)
from txmsg.ops.console.actions import Confirmation, ConsoleAction, Field, deletion
from txmsg.ops.console.forms import duration_of, float_of, int_of
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.shown import duration, number
from txmsg.ops.console.views import View
from txmsg.runtime.durations import shown_duration

PAGE_MAX: Final = 100
_SETTINGS: Final = settings_of(TopicChange)
_SWITCH: Final = ("on", "off")
_GROUPS_MAX: Final = 100
"""Maximum groups shown with a topic, those furthest behind; a topic may have 10,000."""


async def _read(look: PageContext) -> Mapping[str, Any]:
    search, after = look.values.get("q", ""), look.values.get("after", "")
    found = await look.ask_broker(TopicsService.list, TopicQuery(limit=PAGE_MAX, after=after, contains=search))
    rates = look.snapshot.each_rate("txmsg_topic_messages_total") if look.watch.snapshot else {}
    return {
        "topics": found.topics,
        "rates": {topic: rate for (topic,), rate in rates.items()},
        "next": found.next,
        "search": search,
    }


async def _read_one(look: PageContext) -> Mapping[str, Any]:
    topic = look.path["topic"]
    found = await look.ask_broker(TopicsService.show, TopicName(topic=topic))
    rates = look.snapshot.each_rate("txmsg_topic_messages_total") if look.watch.snapshot else {}
    groups = sorted(found.groups, key=lambda group: (-group.waiting, -group.dead, group.group))[:_GROUPS_MAX]
    schemas = (await look.ask_broker(SchemasService.list, SchemaQuery(topic=topic))).schemas
    return {
        "topic": found,
        "facts": list(_facts(look, found.settings)),
        "groups": groups,
        "rate": rates.get((topic,)),
        "schemas": schemas,
        "latest_schema": json.dumps(schemas[-1].schema, indent=2, ensure_ascii=False) if schemas else "",
    }


def _facts(look: PageContext, settings: TopicWithSettings) -> Iterator[tuple[str, str]]:
    """Yield settings with their titles, without numbers of queues that equal the number of all queues."""
    for name, each in _SETTINGS.items():
        value = _now(settings, name)
        is_of_all_queues = name.endswith("_queues") and value == settings.queues
        if name != "journal" and not is_of_all_queues:  # the page says since when there is a journal
            yield look.t(f"topics.{name}"), _fact(look, each, value)


def _fact(look: PageContext, setting: ChangeField, value: Any) -> str:
    if setting.choices:
        return look.renderer.word(f"topics.{setting.name}_", value)
    if not value:
        return look.t("topics.erasable_no" if setting.is_duration else "lists.unlimited")
    if setting.is_duration:
        return look.t("topics.erasable_for", time=duration(value, look.renderer.language))
    return number(value)


# ---- create, change, delete


async def _confirm_create(look: PageContext) -> Confirmation:
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
                choices=_choices(look, _SETTINGS["message_type"]),
            ),
            Field(name="erasable_s", label=look.t("topics.erasable_s"), help=look.t("topics.erasable_s_help")),
        ],
    )


async def _create(look: PageContext) -> str:
    given: Any = {name: _typed(look, _SETTINGS[name]) for name in ("queues", "message_type", "erasable_s")}
    created = await look.ask_broker(
        TopicsService.create, CreateTopic(topic=look.values.get("topic", "").strip(), **given)
    )
    text = "topics.created" if created.created else "topics.existed"
    return look.t(text, topic=created.topic, queues=created.queues)


async def _confirm_alter(look: PageContext) -> Confirmation:
    topic = look.path["topic"]
    settings = await look.ask_broker(TopicsService.settings, TopicName(topic=topic))
    change = _change(look, settings)
    says = [
        look.t(
            "topics.alter_one",
            name=look.t(f"topics.{name}"),
            old=_shown(look, name, _now(settings, name)),
            new=_shown(look, name, new),
        )
        for name in _SETTINGS
        if (new := getattr(change, name)) is not None
    ]
    return Confirmation(
        title=look.t("topics.alter_title", topic=topic),
        says=says or [look.t("topics.alter_says")],
        button=look.t("topics.alter"),
        fields=[_field(look, settings, each) for each in _SETTINGS.values()],
    )


def _field(look: PageContext, settings: TopicWithSettings, setting: ChangeField) -> Field:
    name, choices = setting.name, _choices(look, setting)
    return Field(
        name=name,
        label=look.t(f"topics.{name}"),
        kind="select" if choices else "text" if setting.is_duration else "number",
        value=_given(look, settings, name),
        choices=choices,
        help=look.t(f"topics.{name}_help_alter") if setting.is_duration else "",
        affects=True,
    )


def _choices(look: PageContext, setting: ChangeField) -> Sequence[tuple[str, str]]:
    choices = _SWITCH if setting.kind is bool else setting.choices
    return [(each, look.t(f"topics.{setting.name}_{each}")) for each in choices]


async def _alter(look: PageContext) -> str:
    topic = look.path["topic"]
    settings = await look.ask_broker(TopicsService.settings, TopicName(topic=topic))
    change = _change(look, settings)
    if change == TopicChange():
        return look.t("topics.alter_nothing")
    await look.ask_broker(TopicsService.alter, AlterTopic(topic=topic, change=change))
    return look.t("topics.altered", topic=topic)


def _change(look: PageContext, settings: TopicWithSettings) -> TopicChange:
    """Return the form's values that differ from the topic's."""
    if "permission" not in look.values:
        return TopicChange()
    wanted = {name: _typed(look, setting) for name, setting in _SETTINGS.items()}
    wanted["send_rate_max"] = wanted["send_rate_max"] or 0.0
    return TopicChange(**{name: new for name, new in wanted.items() if new != _now(settings, name)})


def _typed(look: PageContext, setting: ChangeField) -> Any:
    """Return the form's value of a setting; None if nothing is typed."""
    if setting.kind is bool:
        return look.values[setting.name] == "on" if setting.name in look.values else None
    if setting.is_duration:
        return duration_of(look, setting.name)
    if setting.kind is float:
        return float_of(look, setting.name)
    return int_of(look, setting.name) if setting.kind is int else look.values.get(setting.name)


def _now(settings: TopicWithSettings, name: str) -> Any:
    """Return a setting as a TopicChange would give it."""
    if name == "journal":
        return settings.journal_since is not None
    return settings.send_rate_max or 0.0 if name == "send_rate_max" else getattr(settings, name)


def _given(look: PageContext, settings: TopicWithSettings, name: str) -> str:
    if name == "erasable_s":
        return look.values.get(name, "" if settings.erasable_s is None else shown_duration(settings.erasable_s))
    return look.values.get(name, _text(_now(settings, name)))


def _text(value: object) -> str:
    """Return a value in the form of the dialog's fields."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _shown(look: PageContext, name: str, value: Any) -> str:
    """Return a value in the form of a sentence."""
    if name == "send_rate_max" and not value:
        return look.t("lists.unlimited")
    if name == "erasable_s":
        return look.t("topics.erasable_for", time=shown_duration(value)) if value else look.t("topics.erasable_no")
    return look.t(f"topics.journal_{_text(value)}") if name == "journal" else _text(value) or "–"


async def _confirm_delete(look: PageContext) -> Confirmation:
    topic = look.path["topic"]
    found = await look.ask_broker(TopicsService.show, TopicName(topic=topic))
    unread, dead = sum(each.waiting for each in found.groups), sum(each.dead for each in found.groups)
    says = [
        look.t("topics.delete_says", kept=f"{found.kept:,}", queues=found.settings.queues),
        look.t("topics.delete_left", halves=found.halves, scheduled=found.scheduled, unread=f"{unread:,}", dead=dead),
    ]
    if found.settings.permission in {"rw", "w"}:
        says.append(look.t("topics.delete_closed_first"))
    return deletion(look, "topics", topic, says)


async def _delete(look: PageContext) -> str:
    topic, force = look.path["topic"], bool(look.values.get("force"))
    await look.ask_broker(TopicsService.delete, DeleteTopic(topic=topic, force=force))
    return look.t("topics.deleted", topic=topic)


VIEWS: Final = (
    View(path="/topics", section="topics", template="topics.html", read=_read, every_s=2.0),
    View(path="/topics/{topic}", section="topics", template="topic.html", read=_read_one, every_s=2.0),
)
ACTIONS: Final = (
    ConsoleAction(path="/new/{kind}", method="Topics/Create", confirm=_confirm_create, perform=_create),
    ConsoleAction(path="/topics/{topic}/alter", method="Topics/Alter", confirm=_confirm_alter, perform=_alter),
    ConsoleAction(path="/topics/{topic}/delete", method="Topics/Delete", confirm=_confirm_delete, perform=_delete),
)
