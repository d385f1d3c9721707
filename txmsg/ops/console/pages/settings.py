"""Settings of brokers: current values and their sources; set, unset and roll back while brokers run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from txmsg.administration.ask import Nothing, changer
from txmsg.administration.settings import (
    ChangeSetting,
    SettingChange,
    SettingHistoryQuery,
    SettingsInUse,
    SettingsService,
)
from txmsg.broker.config import BrokerConfig
from txmsg.errors import MisuseError
from txmsg.ops.console.actions import Confirmation, ConsoleAction, Field
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.views import View
from txmsg.settings.catalogue import Setting, settings_of

_CATALOGUE: Final[Mapping[str, Setting]] = {each.full_name: each for each in settings_of(BrokerConfig, "broker")}


async def _read(look: PageContext) -> Mapping[str, Any]:
    found = await look.ask_broker(SettingsService.show, Nothing())
    stored = {each.name: each for each in found.stored}
    used = {each.name: each for each in found.used}
    wanted = look.values.get("q", "").strip().lower()
    rows = [
        {
            "name": name,
            "used": used.get(name),
            "stored": stored.get(name),
            "setting": _CATALOGUE.get(name.partition("@")[0]),
        }
        for name in sorted(used.keys() | stored.keys(), key=lambda name: (name not in stored, name))
    ]
    return {
        "in_use": found,
        "rows": [row for row in rows if wanted in str(row["name"]).lower()],
        "count": len(rows),
    }


async def _read_one(look: PageContext) -> Mapping[str, Any]:
    name = look.path["name"]
    found, changes = await look.ask_broker(SettingsService.show, Nothing()), await _history(look, name)
    return {
        "name": name,
        "setting": _CATALOGUE.get(name.partition("@")[0]),
        "used": next((each for each in found.used if each.name == name), None),
        "stored": _stored(found, name),
        "changes": changes,
    }


async def _history(look: PageContext, name: str) -> Sequence[SettingChange]:
    return (await look.ask_broker(SettingsService.history, SettingHistoryQuery(name=name))).changes


def _stored(found: SettingsInUse, name: str) -> SettingChange | None:
    return next((each for each in found.stored if each.name == name), None)


async def _version(look: PageContext) -> tuple[SettingsInUse, str]:
    """Return the current value, and the version that a change is based on: that at the opening of its dialog."""
    name = look.path["name"]
    found, changes = await look.ask_broker(SettingsService.show, Nothing()), await _history(look, name)
    # The dialog sends the version back: if another operator changes the setting meanwhile, the broker refuses this
    # change.
    return found, look.values.get("version") or str(changes[0].version if changes else 0)


def _given_version(look: PageContext) -> int:
    try:
        return int(look.values.get("version", ""))
    except ValueError:
        raise MisuseError("the form has no version of the setting: open it again") from None


def _loses(name: str) -> list[str]:
    """Return the text about data that a change of the setting may delete for good."""
    setting = _CATALOGUE.get(name.partition("@")[0])
    return [setting.loses] if setting is not None and setting.loses else []


async def _confirm_set(look: PageContext) -> Confirmation:
    name = look.path["name"]
    found, version = await _version(look)
    setting = _CATALOGUE.get(name.partition("@")[0])
    used = next((each.value for each in found.used if each.name == name), "")
    stored = _stored(found, name)
    choices = [(each, each) for each in setting.choices] if setting is not None else []
    says = [look.t("settings.set_says", name=name), *([setting.meaning] if setting is not None else []), *_loses(name)]
    return Confirmation(
        title=look.t("settings.set_title", name=name),
        says=says,
        button=look.t("settings.set"),
        is_danger=bool(_loses(name)),
        fields=(
            Field(
                name="value",
                label=look.t("settings.value"),
                value=look.values.get("value", (stored.value if stored else None) or used),
                kind="select" if choices else "text",
                choices=choices,
                help=""
                if setting is None
                else f"{setting.rule()} · {look.t('settings.default')} {setting.shown_default()}",
            ),
            Field(name="version", value=version, kind="hidden"),
        ),
    )


async def _set(look: PageContext) -> str:
    name, value, version = look.path["name"], look.values.get("value", ""), _given_version(look)
    change = ChangeSetting(name=name, value=value, version=version, changed_by=changer())
    changed = await look.ask_broker(SettingsService.change, change)
    return look.t("settings.was_set", name=name, value=str(changed.value), version=changed.version)


async def _confirm_unset(look: PageContext) -> Confirmation:
    name = look.path["name"]
    found, version = await _version(look)
    stored = _stored(found, name)
    return Confirmation(
        title=look.t("settings.unset_title", name=name),
        says=[look.t("settings.unset_says", value=str(stored.value) if stored else "–"), *_loses(name)],
        button=look.t("settings.unset"),
        is_danger=bool(_loses(name)),
        fields=(Field(name="version", value=version, kind="hidden"),),
    )


async def _unset(look: PageContext) -> str:
    name, version = look.path["name"], _given_version(look)
    await look.ask_broker(SettingsService.change, ChangeSetting(name=name, version=version, changed_by=changer()))
    return look.t("settings.was_unset", name=name)


async def _confirm_rollback(look: PageContext) -> Confirmation:
    name, as_of = look.path["name"], int(look.path["as_of"])
    changes = await _history(look, name)
    then = next((each for each in changes if each.version == as_of), None)
    if then is None:
        raise MisuseError(look.t("settings.no_version", name=name, version=as_of))
    return Confirmation(
        title=look.t("settings.rollback_title", name=name),
        says=[
            look.t("settings.rollback_says", version=as_of, value=then.value)
            if then.value is not None
            else look.t("settings.rollback_says_unset", version=as_of),
            *_loses(name),
        ],
        button=look.t("settings.rollback"),
        is_danger=bool(_loses(name)),
        fields=(Field(name="version", value=look.values.get("version") or str(changes[0].version), kind="hidden"),),
    )


async def _rollback(look: PageContext) -> str:
    name, as_of, version = look.path["name"], int(look.path["as_of"]), _given_version(look)
    change = ChangeSetting(name=name, as_of=as_of, version=version, changed_by=changer())
    changed = await look.ask_broker(SettingsService.change, change)
    if changed.value is None:
        return look.t("settings.was_unset", name=name)
    return look.t("settings.was_set", name=name, value=changed.value, version=changed.version)


VIEWS: Final = (
    View(path="/settings", section="settings", template="settings.html", read=_read, every_s=2.0),
    View(path="/settings/{name}", section="settings", template="setting.html", read=_read_one, every_s=2.0),
)
ACTIONS: Final = (
    ConsoleAction(path="/settings/{name}/set", method="Settings/Change", confirm=_confirm_set, perform=_set),
    ConsoleAction(path="/settings/{name}/unset", method="Settings/Change", confirm=_confirm_unset, perform=_unset),
    ConsoleAction(
        path="/settings/{name}/rollback/{as_of:int}",
        method="Settings/Change",
        confirm=_confirm_rollback,
        perform=_rollback,
    ),
)
