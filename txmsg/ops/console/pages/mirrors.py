"""The mirrors of a Notify database, and MetaQ logs: their topics and groups; seek and delete a group of a log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from txmsg.administration.ask import Nothing
from txmsg.administration.cluster import ClusterService, MirrorProgress
from txmsg.administration.groups import GroupQuery
from txmsg.errors import TxmsgError
from txmsg.ops.console import group_actions
from txmsg.ops.console.actions import Confirmation, ConsoleAction
from txmsg.ops.console.logs import NamedLog
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.user_databases import UserDatabase
from txmsg.ops.console.views import View

if TYPE_CHECKING:
    from txmsg.administration.log import LogAdministration
    from txmsg.administration.log_contents import LogState

T = TypeVar("T")

_PAGE_MAX: Final = 100
_QUEUES_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A log in the list. state: None if it does not answer, with the reason."""

    log: NamedLog
    state: LogState | None
    error: str = ""


async def _read(look: PageContext) -> Mapping[str, Any]:
    mirrors: Sequence[MirrorProgress] = ()
    error = ""
    rows = asyncio.gather(*(_row(look.desk, log) for log in look.logs.values()))
    try:
        mirrors = (await look.ask_broker(ClusterService.mirrors, Nothing())).mirrors
    except TxmsgError as exc:  # the logs are shown all the same
        error = str(exc)
    return {"mirrors": mirrors, "mirrors_error": error, "logs": await rows, "without_own": _without_own}


def _without_own(excluded: Sequence[str]) -> list[str]:
    """Return the operator's patterns, without those of a log's own topics, as %RETRY%GROUP."""
    return [each for each in excluded if not each.startswith("%")]


async def _row(desk: UserDatabase, log: NamedLog) -> _Row:
    from txmsg.administration.log_contents import log_state  # with txmsg[metaq] only

    try:
        return _Row(log=log, state=await log.run(desk, log_state))
    except TxmsgError as exc:
        return _Row(log=log, state=None, error=str(exc))


async def _read_log(look: PageContext) -> Mapping[str, Any]:
    from txmsg.administration.log_contents import log_state, log_topics

    search = look.values.get("q", "")
    topics_after, groups_after = look.values.get("topics", ""), look.values.get("groups", "")
    state, (topics, next_topics) = await look.log(
        lambda log: (log_state(log), log_topics(log, _PAGE_MAX, after=topics_after, contains=search))
    )
    query = GroupQuery(limit=_PAGE_MAX, after=groups_after, contains=search)
    groups = await _groups(look)(lambda groups: groups.list_groups(query))
    return {
        "log": look.logs[look.path["log"]],
        "state": state,
        "topics": topics,
        "next_topics": next_topics,
        "groups": groups.groups,
        "next_groups": groups.next,
        "search": search,
    }


async def _read_group(look: PageContext) -> Mapping[str, Any]:
    found = await _groups(look)(lambda groups: groups.show_group(look.path["group"]))
    return {"group": found, "queues": found.queues[:_QUEUES_MAX]}


def _groups(look: PageContext) -> group_actions.AskAdministration:
    """Return the administration of the groups of the log that the path names."""

    async def ask(work: Callable[[LogAdministration], T]) -> T:
        from txmsg.administration.log import LogAdministration

        return await look.log(lambda log: work(LogAdministration(log)))

    return ask


async def _confirm_seek(look: PageContext) -> Confirmation:
    return await group_actions.confirm_seek(look, _groups(look), has_generations=False)


async def _seek(look: PageContext) -> str:
    return await group_actions.seek(look, _groups(look))


async def _confirm_delete(look: PageContext) -> Confirmation:
    return await group_actions.confirm_delete(look, _groups(look))


async def _delete(look: PageContext) -> str:
    return await group_actions.delete(look, _groups(look))


_GROUP: Final = "/logs/{log}/groups/{group}"

VIEWS: Final = (
    View(path="/mirrors", section="mirrors", template="mirrors.html", read=_read, every_s=2.0),
    View(path="/logs/{log}", section="mirrors", template="log.html", read=_read_log, every_s=5.0),
    View(path=_GROUP, section="mirrors", template="log_group.html", read=_read_group, every_s=2.0),
)
# What a visitor may do there, the log's server says; for a log in a directory, console/logs.py does.
ACTIONS: Final = (
    ConsoleAction(path=f"{_GROUP}/seek", method="", confirm=_confirm_seek, perform=_seek),
    ConsoleAction(path=f"{_GROUP}/delete", method="", confirm=_confirm_delete, perform=_delete),
)
