"""Half messages of a Notify database: clients that can answer for them; check again, decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from txmsg.administration.halves import (
    AdminService,
    HalfDecision,
    HalfMessage,
    HalfPage,
    HalfQuery,
    ResumeHalves,
    found_of,
    of_transaction,
)
from txmsg.errors import MisuseError
from txmsg.ops.console.actions import Confirmation, ConsoleAction, Field
from txmsg.ops.console.body import shown_body
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.views import View
from txmsg.wire.v1.txmsg_pb2 import EndTransactionsRequest, RouteRequest
from txmsg.wire.v1.txmsg_rpc import Notify

PAGE_MAX: Final = 50


async def _read(look: PageContext) -> Mapping[str, Any]:
    group, parked = look.values.get("group", "").strip(), bool(look.values.get("parked"))
    page = look.values.get("page", "")
    query = HalfQuery(group=group, parked_only=parked, limit=PAGE_MAX, after=page or None)
    found = await look.ask_broker(AdminService.list_halves, query)
    return {"halves": found.halves, "next": found.next, "group": group, "parked": parked, "now": datetime.now(UTC)}


async def _read_one(look: PageContext) -> Mapping[str, Any]:
    found = await _found(look, with_bodies=True)
    form = look.values.get("form", "")
    return {
        "first": found.halves[0],
        "halves": [(half, shown_body(half.body, form)) for half in found.halves[:PAGE_MAX]],
        "count": len(found.halves),
        "now": datetime.now(UTC),
    }


def _transaction(look: PageContext) -> UUID:
    try:
        return UUID(look.path["transaction"])
    except ValueError as exc:
        raise MisuseError(look.t("halves.no_id", id=look.path["transaction"])) from exc


async def _found(look: PageContext, *, with_bodies: bool = False) -> HalfPage:
    transaction_id = _transaction(look)
    query = of_transaction(transaction_id, with_bodies=with_bodies)
    return found_of(transaction_id, await look.ask_broker(AdminService.list_halves, query))


async def _halves(look: PageContext) -> Sequence[HalfMessage]:
    return (await _found(look)).halves


async def _confirm_check(look: PageContext) -> Confirmation:
    first, *_ = await _halves(look)
    return Confirmation(
        title=look.t("halves.check_title"),
        says=[
            look.t("halves.check_says", group=first.group, clients=first.clients),
            *([] if first.clients else [look.t("halves.no_client")]),
        ],
        button=look.t("halves.check"),
    )


async def _check(look: PageContext) -> str:
    transaction_id = _transaction(look)
    found = await look.ask_broker(AdminService.resume_halves, ResumeHalves(transaction_id=transaction_id))
    if not found.resumed:  # it is not parked: then its client's "unknown" has it checked soon
        route = await look.ask_broker(Notify.route, RouteRequest())
        await look.ask_broker(
            Notify.end_transactions, EndTransactionsRequest(shard=route.shard, unknown=transaction_id.bytes)
        )
    return look.t("halves.checked")


def _deciding(outcome: str) -> ConsoleAction:
    """Return the action that commits, or rolls back, a half message."""

    async def confirm(look: PageContext) -> Confirmation:
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

    async def perform(look: PageContext) -> str:
        transaction_id, reason = _transaction(look), look.values.get("reason", "").strip()
        # A form can be posted without its required field, and a final decision must have a reason.
        if not reason:
            raise MisuseError(look.t("halves.no_reason"))
        decision = HalfDecision(transaction_id=transaction_id, commit=outcome == "commit", reason=reason)
        await look.ask_broker(AdminService.resolve_half, decision)
        return look.t(f"halves.{outcome}_done")

    path = f"/halves/{{transaction}}/{outcome}"
    return ConsoleAction(path=path, method="Admin/ResolveHalf", confirm=confirm, perform=perform)


VIEWS: Final = (
    View(path="/halves", section="halves", template="halves.html", read=_read, every_s=2.0),
    View(path="/halves/{transaction}", section="halves", template="half.html", read=_read_one, every_s=2.0),
)
ACTIONS: Final = (
    ConsoleAction(
        path="/halves/{transaction}/check", method="Admin/ResumeHalves", confirm=_confirm_check, perform=_check
    ),
    _deciding("commit"),
    _deciding("rollback"),
)
