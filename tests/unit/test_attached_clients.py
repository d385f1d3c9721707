"""Pending checks of attached clients, and outcomes that arrive otherwise meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.closed_pool import ClosedWriter, closed_pool
from tests.waiting import until_async
from txmsg.broker.clients import AttachedClient, AttachedClients
from txmsg.broker.service import NotifyService
from txmsg.broker.store.batch import Problem, WriteBatch
from txmsg.broker.store.topics import TopicRegistry
from txmsg.checker.ports import DueHalf
from txmsg.message import ReceivedMessage, TransactionState, new_transaction_id


class PartlyFailingWriter(ClosedWriter):
    """A writer that stores all outcomes but one."""

    def __init__(self, refused: bytes) -> None:
        super().__init__()
        self._id_refused = refused

    async def write(self, batch: WriteBatch, size_bytes: int) -> Mapping[bytes, Problem]:
        return {self._id_refused: "expired"} if self._id_refused in batch.commit else {}


def _half() -> DueHalf:
    return DueHalf(
        transaction_id=new_transaction_id(),
        group="shop",
        fence_id=None,
        checks=1,
        age_s=6,
        overdue_s=0,
        message=ReceivedMessage("orders", b"x"),
    )


async def test_an_outcome_from_another_client_ends_a_pending_check() -> None:
    clients, sent = AttachedClients(), list[DueHalf]()
    silent = AttachedClient("silent", "shop", frozenset({None}), sent.append)
    clients.attach(silent)
    committed, rolled_back, refused, answered = halves = [_half() for _ in range(4)]
    topics, writer = (
        TopicRegistry(closed_pool(), auto_create=True, queues=1),
        PartlyFailingWriter(refused.transaction_id.bytes),
    )
    service = NotifyService(topics, writer, writer, on_decided=clients.decided)
    checks = [asyncio.create_task(clients.ask_client(half)) for half in halves]
    await until_async(lambda: len(sent) == len(halves))
    await service.end_transactions(
        commit=[committed.transaction_id.bytes, refused.transaction_id.bytes],
        rollback=[rolled_back.transaction_id.bytes],
    )
    assert [await checks[0], await checks[1]] == [None, None]
    for half in (refused, answered):  # an outcome that was not stored still needs an answer
        silent.answer(half.transaction_id, TransactionState.COMMIT)
    assert [await checks[2], await checks[3]] == [TransactionState.COMMIT] * 2
    silent.answer(committed.transaction_id, TransactionState.ROLLBACK)  # too late: no check is pending
    await service.end_transactions(commit=[committed.transaction_id.bytes])
