"""The consumer groups of a Notify database: members, lag, retries; stop and start, settings, seek, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from txmsg.administration.groups import (
    GroupChange,
    GroupDetails,
    GroupName,
    GroupQuery,
    GroupsService,
    PoisonedKey,
    RetryQuery,
    RetrySkip,
)
from txmsg.errors import MisuseError
from txmsg.message import parse_id
from txmsg.ops.console import group_actions
from txmsg.ops.console.actions import Confirmation, ConsoleAction, Field, final_act
from txmsg.ops.console.forms import float_of, int_of
from txmsg.ops.console.operations import ConsoleOperation
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.views import View
from txmsg.runtime.durations import seconds_in, shown_duration

PAGE_MAX: Final = 100
_RETRIES_MAX: Final = 20
_MEMBERS_MAX: Final = 200
_QUEUES_MAX: Final = 500


async def _read(look: PageContext) -> Mapping[str, Any]:
    search, after = look.values.get("q", ""), look.values.get("after", "")
    found = await look.ask_broker(GroupsService.list, GroupQuery(limit=PAGE_MAX, after=after, contains=search))
    return {"groups": found.groups, "producers": found.producer_groups, "next": found.next, "search": search}


async def _read_one(look: PageContext) -> Mapping[str, Any]:
    group, page = look.path["group"], look.values.get("retries", "")
    found = await _shown(look)
    retries = await look.ask_broker(GroupsService.list_retries, RetryQuery(group=group, limit=_RETRIES_MAX, after=page))
    rates = look.snapshot.each_rate("txmsg_group_processed_messages_total") if look.watch.snapshot else {}
    own = [rate for (of, _), rate in rates.items() if of == group]  # none, if there are more groups than figures name
    return {
        "group": found,
        "retries": retries,
        "members": found.members[:_MEMBERS_MAX],
        "queues": found.queues[:_QUEUES_MAX],
        "rate": sum(own) if own else None,
        "delays": [shown_duration(delay) for delay in found.settings.retry_delays_s or ()],
    }


async def _shown(look: PageContext) -> GroupDetails:
    return await look.ask_broker(GroupsService.show, GroupName(group=look.path["group"]))


# ---- stop, start, settings


async def _confirm_stop(look: PageContext) -> Confirmation:
    return await _confirm(look, "stop")


async def _confirm_start(look: PageContext) -> Confirmation:
    return await _confirm(look, "start")


async def _confirm(look: PageContext, what: str) -> Confirmation:
    found = await _shown(look)
    return Confirmation(
        title=look.t(f"groups.{what}_title", group=look.path["group"]),
        says=[look.t(f"groups.{what}_says", members=len(found.members), waiting=f"{found.waiting:,}")],
        button=look.t(f"groups.{what}"),
    )


async def _stop(look: PageContext) -> str:
    return await _set_stopped(look, stopped=True)


async def _start(look: PageContext) -> str:
    return await _set_stopped(look, stopped=False)


async def _set_stopped(look: PageContext, *, stopped: bool) -> str:
    group = look.path["group"]
    await look.ask_broker(GroupsService.alter, GroupChange(group=group, stopped=stopped))
    return look.t("groups.is_stopped" if stopped else "groups.is_started", group=group)


async def _confirm_alter(look: PageContext) -> Confirmation:
    settings = (await _shown(look)).settings
    delays = " ".join(shown_duration(delay) for delay in settings.retry_delays_s or ())
    rate, retries = settings.deliver_rate_max, settings.retries_max
    return Confirmation(
        title=look.t("groups.alter_title", group=look.path["group"]),
        says=[look.t("groups.alter_says")],
        button=look.t("groups.alter"),
        fields=[
            Field(
                name="rate",
                label=look.t("groups.rate_max"),
                kind="number",
                value=look.values.get("rate", "" if rate is None else f"{rate:g}"),
                help=look.t("groups.rate_help"),
            ),
            Field(
                name="retries",
                label=look.t("groups.retries_max"),
                kind="number",
                value=look.values.get("retries", "" if retries is None else str(retries)),
                help=look.t("groups.default_help"),
            ),
            Field(
                name="delays",
                label=look.t("groups.delays"),
                value=look.values.get("delays", delays),
                help=look.t("groups.delays_help"),
            ),
            Field(
                name="poisoned_key",
                label=look.t("groups.poisoned_key"),
                kind="select",
                value=look.values.get("poisoned_key", settings.poisoned_key or "continue"),
                choices=[(each, look.t(f"groups.poisoned_key_{each}")) for each in ("continue", "park")],
            ),
            Field(
                name="orderly",
                label=look.t("groups.orderly"),
                kind="select",
                value=look.values.get("orderly", "on" if settings.orderly else "off"),
                choices=[(each, look.t(f"groups.orderly_{each}")) for each in ("off", "on")],
            ),
        ],
    )


async def _alter(look: PageContext) -> str:
    group = look.path["group"]
    change = GroupChange(
        group=group,
        retry_delays_s=_delays(look) or None,
        default_retries=True,  # what is not typed is the broker's again
        retries_max=int_of(look, "retries"),
        poisoned_key=cast(PoisonedKey | None, look.values.get("poisoned_key")),  # checked when it is sent
        deliver_rate_max=float_of(look, "rate") or 0.0,
        orderly=look.values["orderly"] == "on" if "orderly" in look.values else None,
    )
    await look.ask_broker(GroupsService.alter, change)
    return look.t("groups.altered", group=group)


def _delays(look: PageContext) -> Sequence[float]:
    delays: list[float] = []
    for text in look.values.get("delays", "").replace(",", " ").split():
        seconds = seconds_in(text)
        if seconds is None:
            raise MisuseError(look.t("groups.no_duration", text=text))
        delays.append(seconds)
    return delays


# ---- seek and delete


async def _confirm_seek(look: PageContext) -> Confirmation:
    return await group_actions.confirm_seek(look, look.notify, has_generations=True)


async def _seek(look: PageContext) -> str:
    return await group_actions.seek(look, look.notify)


async def _confirm_delete(look: PageContext) -> Confirmation:
    return await group_actions.confirm_delete(look, look.notify)


async def _delete(look: PageContext) -> str:
    return await group_actions.delete(look, look.notify)


# ---- retries


async def _confirm_retry(look: PageContext) -> Confirmation:
    group, id_ = look.path["group"], look.values.get("id", "")
    found = await _shown(look)
    says = look.t("groups.retry_one_says", id=id_) if id_ else look.t("groups.retry_says", count=f"{found.retrying:,}")
    return Confirmation(
        title=look.t("groups.retry_title", group=group),
        says=[says],
        button=look.t("groups.retry"),
        fields=[Field(name="id", kind="hidden", value=id_)],
    )


async def _retry(look: PageContext) -> str | ConsoleOperation:
    group, id_ = look.path["group"], look.values.get("id", "")
    if id_:
        count = await look.notify(lambda notify: sum(notify.retry_now(group, id_)))
        return look.t("groups.retried", count=count)
    total = (await _shown(look)).retrying
    return look.start(look.t("groups.retrying_all", group=group), total, lambda notify: notify.retry_now(group))


async def _confirm_skip(look: PageContext) -> Confirmation:
    group, id_ = look.path["group"], look.values.get("id", "")
    parse_id(id_)
    return final_act(look, "groups.skip", "id", id=id_, group=group)


async def _skip(look: PageContext) -> str:
    group, id_ = look.path["group"], look.values.get("id", "")
    found = await look.ask_broker(GroupsService.skip_retry, RetrySkip(group=group, id=id_))
    return look.t("groups.skipped", count=found.skipped)


VIEWS: Final = (
    View(path="/groups", section="groups", template="groups.html", read=_read, every_s=2.0),
    View(path="/groups/{group}", section="groups", template="group.html", read=_read_one, every_s=2.0),
)
ACTIONS: Final = (
    ConsoleAction(path="/groups/{group}/stop", method="Groups/Alter", confirm=_confirm_stop, perform=_stop),
    ConsoleAction(path="/groups/{group}/start", method="Groups/Alter", confirm=_confirm_start, perform=_start),
    ConsoleAction(path="/groups/{group}/alter", method="Groups/Alter", confirm=_confirm_alter, perform=_alter),
    ConsoleAction(path="/groups/{group}/seek", method="Groups/Seek", confirm=_confirm_seek, perform=_seek),
    ConsoleAction(path="/groups/{group}/retry", method="Groups/RetryNow", confirm=_confirm_retry, perform=_retry),
    ConsoleAction(path="/groups/{group}/skip", method="Groups/SkipRetry", confirm=_confirm_skip, perform=_skip),
    ConsoleAction(path="/groups/{group}/delete", method="Groups/Delete", confirm=_confirm_delete, perform=_delete),
)
