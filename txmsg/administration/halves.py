"""Administration of the half messages of a Notify database, by the services Admin and Notify of any of its brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from txmsg.administration.ask import Ask, moment
from txmsg.errors import OutcomeExpired
from txmsg.message import MESSAGES_PER_TRANSACTION_MAX
from txmsg.wire.headers import unpack_headers
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Admin, Notify


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessage:
    """A half message, or a committed one that waits for an earlier one of its ordering key (held_back_by).

    next_check_at: None while it is parked. clients: attached ones that can answer its check, at the broker that was
    asked. headers and body may be empty unless they were asked for.
    """

    transaction_id: UUID
    n: int
    group: str
    topic: str
    key: str | None
    ordering_key: str | None
    tag: str | None
    born_at: datetime | None
    stored_at: datetime | None
    next_check_at: datetime | None
    checks: int
    parked_reason: str | None
    deliver_at: datetime | None
    committed: bool
    held_back_by: UUID | None
    fence_id: UUID | None
    clients: int
    headers: Mapping[str, str]
    body: bytes
    is_withheld: bool
    """They were asked for, and left out: the caller may not read the topic."""

    def is_unanswerable(self, now: datetime) -> bool:
        """Whether its check is due, and no client can answer it."""
        return self.next_check_at is not None and self.next_check_at <= now and not self.clients


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfPage:
    """Half messages, the oldest first. next: what names the page after this one; None for the last one."""

    halves: Sequence[HalfMessage]
    next: str | None


class HalfAdministration:
    """What `txmsg half` does. Calls block. Raises the errors of errors.py."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def list(self, limit: int, *, group: str = "", parked: bool = False, page: str = "") -> HalfPage:
        """The first page of half messages, or the one that `page` names; those of a producer group, or parked only."""
        request = pb.ListHalvesRequest(group=group, parked_only=parked, limit=limit, after=page)
        return _page(self._ask(Admin.list_halves, request))

    def show(self, transaction_id: UUID, *, whole: bool = True) -> HalfPage:
        """The half messages of a transaction: all, unless `next` says that they are too large for one reply.

        whole: with headers and bodies. Raises OutcomeExpired if there are none.
        """
        request = pb.ListHalvesRequest(
            transaction_id=transaction_id.bytes, with_bodies=whole, limit=MESSAGES_PER_TRANSACTION_MAX
        )
        found = _page(self._ask(Admin.list_halves, request))
        if not found.halves:
            raise OutcomeExpired(
                f"there is no half message of transaction {transaction_id}: it was decided, or never stored here; "
                "`txmsg half list` shows undecided ones"
            )
        return found

    def decide(self, transaction_id: UUID, *, committed: bool, reason: str = "") -> None:
        """Commits a transaction, or rolls it back, for good. The broker logs the reason. Raises OutcomeConflict."""
        request = pb.ResolveHalfRequest(transaction_id=transaction_id.bytes, commit=committed, reason=reason)
        self._ask(Admin.resolve_half, request)

    def resume(self, transaction_id: UUID | None = None, *, group: str = "") -> int:
        """Checks parked transactions again, at once, as if they were new: one, or all of a group; how many they were.

        Those that are not parked are left alone.
        """
        request = pb.ResumeHalvesRequest(transaction_id=transaction_id.bytes if transaction_id else b"", group=group)
        return self._ask(Admin.resume_halves, request).resumed

    def check(self, transaction_id: UUID) -> None:
        """Has a transaction checked soon, whether it is parked or not."""
        if not self.resume(transaction_id):
            route = self._ask(Notify.route, pb.RouteRequest())
            self._ask(
                Notify.end_transactions,
                pb.EndTransactionsRequest(shard=route.shard, unknown=transaction_id.bytes),
            )


def _page(reply: pb.ListHalvesReply) -> HalfPage:
    return HalfPage(halves=[_half(half) for half in reply.halves], next=reply.next or None)


def _half(half: pb.Half) -> HalfMessage:
    return HalfMessage(
        transaction_id=UUID(bytes=half.transaction_id),
        n=half.n,
        group=half.group,
        topic=half.topic,
        key=half.key or None,
        ordering_key=half.ordering_key or None,
        tag=half.tag or None,
        born_at=moment(half.born_at_us),
        stored_at=moment(half.stored_at_us),
        next_check_at=moment(half.next_check_at_us),
        checks=half.checks,
        parked_reason=half.parked_reason or None,
        deliver_at=moment(half.deliver_at_us),
        committed=half.decided,
        held_back_by=UUID(bytes=half.held_back_by) if half.held_back_by else None,
        fence_id=UUID(bytes=half.fence_id) if half.fence_id else None,
        clients=half.clients,
        headers=dict(unpack_headers(half.headers)),
        body=half.body,
        is_withheld=half.withheld,
    )
