"""Half messages of a Notify database: clients that can answer for them; check again, decide."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from txmsg.administration.halves import HalfMessage
from txmsg.console.actions import Action, Confirmation, Field
from txmsg.console.body import shown_body
from txmsg.console.look import Look
from txmsg.console.views import View
from txmsg.errors import MisuseError

PAGE_MAX: Final = 50


async def _read(look: Look) -> Mapping[str, Any]:
    group, parked = look.values.get("group", "").strip(), bool(look.values.get("parked"))
    page = look.values.get("page", "")
    found = await look.halves(lambda halves: halves.list(PAGE_MAX, group=group, parked=parked, page=page))
    return {"halves": found.halves, "next": found.next, "group": group, "parked": parked, "now": datetime.now(UTC)}


async def _read_one(look: Look) -> Mapping[str, Any]:
    transaction_id = _transaction(look)
    found = await look.halves(lambda halves: halves.show(transaction_id))
    form = look.values.get("form", "")
    return {
        "first": found.halves[0],
        "halves": [(half, shown_body(half.body, form)) for half in found.halves[:PAGE_MAX]],
        "count": len(found.halves),
        "now": datetime.now(UTC),
    }


def _transaction(look: Look) -> UUID:
    try:
        return UUID(look.path["transaction"])
    except ValueError as exc:
        raise MisuseError(look.t("halves.no_id", id=look.path["transaction"])) from exc


async def _halves(look: Look) -> list[HalfMessage]:
    transaction_id = _transaction(look)
    return list((await look.halves(lambda halves: halves.show(transaction_id, whole=False))).halves)


async def _confirm_check(look: Look) -> Confirmation:
    first, *_ = await _halves(look)
    return Confirmation(
        title=look.t("halves.check_title"),
        says=[
            look.t("halves.check_says", group=first.group, clients=first.clients),
            *([] if first.clients else [look.t("halves.no_client")]),
        ],
        button=look.t("halves.check"),
    )


async def _check(look: Look) -> str:
    transaction_id = _transaction(look)
    await look.halves(lambda halves: halves.check(transaction_id))
    return look.t("halves.checked")


def _deciding(outcome: str) -> Action:
    """Commit or rollback."""

    async def confirm(look: Look) -> Confirmation:
        found = await _halves(look)
        topics = ", ".join(sorted({half.topic for half in found}))
        return Confirmation(
            title=look.t(f"halves.{outcome}_title"),
            says=[
                look.t(f"halves.{outcome}_says", count=len(found), group=found[0].group, topics=topics),
                look.t("halves.decide_says", checks=found[0].checks, clients=found[0].clients),
            ],
            button=look.t(f"halves.{outcome}"),
            is_danger=True,
            fields=[
                Field(
                    name="reason",
                    label=look.t("halves.reason"),
                    value=look.values.get("reason", ""),
                    help=look.t("halves.reason_help"),
                    is_required=True,
                )
            ],
        )

    async def perform(look: Look) -> str:
        transaction_id, reason = _transaction(look), look.values.get("reason", "").strip()
        if not reason:
            raise MisuseError(look.t("halves.no_reason"))
        committed = outcome == "commit"
        await look.halves(lambda halves: halves.decide(transaction_id, committed=committed, reason=reason))
        return look.t(f"halves.{outcome}_done")

    path = f"/halves/{{transaction}}/{outcome}"
    return Action(path=path, method="Admin/ResolveHalf", confirm=confirm, perform=perform)


VIEWS: Final = (
    View(path="/halves", section="halves", template="halves.html", read=_read, every_s=2.0),
    View(path="/halves/{transaction}", section="halves", template="half.html", read=_read_one, every_s=2.0),
)
ACTIONS: Final = (
    Action(path="/halves/{transaction}/check", method="Admin/ResumeHalves", confirm=_confirm_check, perform=_check),
    _deciding("commit"),
    _deciding("rollback"),
)
