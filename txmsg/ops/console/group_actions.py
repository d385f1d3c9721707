"""Seek and delete, which are the same for groups of Notify and of a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from txmsg.administration.groups import GroupDeletion, Seek
from txmsg.administration.interface import Administration
from txmsg.errors import MisuseError
from txmsg.ops.console.actions import Confirmation, Field, deletion
from txmsg.ops.console.forms import as_of_now, int_of
from txmsg.ops.console.page_context import PageContext
from txmsg.wire.start import Start

T = TypeVar("T")


class AskAdministration(Protocol):
    """A function that asks the administration of groups: `PageContext.notify`, or that of a log."""

    async def __call__(self, work: Callable[[Administration], T], /) -> T:
        """Run `work` on the administration. Returns its result."""
        ...


async def confirm_seek(look: PageContext, ask: AskAdministration, *, has_generations: bool) -> Confirmation:
    """Return the dialog: the position, and skipped and repeated messages. has_generations: messages may come as new
    ones.
    """
    group = look.path["group"]
    found = await ask(lambda groups: groups.show_group(group))
    topics = sorted({queue.topic for queue in found.queues if not queue.topic.startswith("%")})
    if not topics:
        raise MisuseError(look.t("groups.reads_nothing", group=group))
    says, given = [look.t("groups.seek_says")], as_of_now(look.values.get("to", "").strip())
    if given:
        seek = _seek(look, given, dry_run=True)
        plan = await ask(lambda groups: groups.seek(seek))
        says = [
            look.t("groups.seek_plan", skipped=f"{plan.skipped:,}", repeated=f"{plan.repeated:,}", queues=len(plan.to)),
            look.t("groups.seek_running"),
        ]
    fields = [
        Field(
            name="topic",
            label=look.t("overview.topic"),
            kind="select",
            value=look.values.get("topic", topics[0]),
            choices=[(each, each) for each in topics],
            affects=True,
        ),
        Field(
            name="to",
            label=look.t("groups.seek_to"),
            value=given,
            help=look.t("groups.seek_to_help"),
            is_required=True,
            affects=True,
        ),
        Field(
            name="queue",
            label=look.t("groups.queue"),
            kind="number",
            value=look.values.get("queue", ""),
            help=look.t("groups.queue_help"),
            affects=True,
        ),
    ]
    if has_generations:
        fields.append(
            Field(
                name="again",
                label=look.t("groups.again"),
                kind="checkbox",
                value=look.values.get("again", ""),
                help=look.t("groups.again_help"),
            )
        )
    return Confirmation(
        title=look.t("groups.seek_title", group=group),
        says=says,
        button=look.t("groups.seek"),
        is_danger=True,
        fields=fields,
    )


async def seek(look: PageContext, ask: AskAdministration) -> str:
    """Seek the group."""
    seek = _seek(look, look.values.get("to", "").strip())
    sought = await ask(lambda groups: groups.seek(seek))
    return look.t("groups.sought", group=seek.group, queues=len(sought.queues))


def _seek(look: PageContext, to: str, *, dry_run: bool = False) -> Seek:
    """Return the seek that the form describes."""
    return Seek(
        group=look.path["group"],
        topic=look.values.get("topic", ""),
        to=Start.parse(to),
        queue=int_of(look, "queue"),
        again=bool(look.values.get("again")),
        dry_run=dry_run,
    )


async def confirm_delete(look: PageContext, ask: AskAdministration) -> Confirmation:
    """Return the dialog, with the things that are deleted with the group."""
    group = look.path["group"]
    found = await ask(lambda groups: groups.show_group(group))
    counts = {"waiting": f"{found.waiting:,}", "retrying": f"{found.retrying:,}", "dead": f"{found.dead:,}"}
    says = [look.t("groups.delete_says", **counts), look.t("groups.delete_members", members=len(found.members))]
    return deletion(look, "groups", group, says)


async def delete(look: PageContext, ask: AskAdministration) -> str:
    """Delete the group."""
    deletion = GroupDeletion(group=look.path["group"], force=bool(look.values.get("force")))
    await ask(lambda groups: groups.delete_group(deletion))
    return look.t("groups.deleted", group=deletion.group)
