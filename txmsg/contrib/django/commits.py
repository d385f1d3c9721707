"""The end of half messages in a transaction of Django: the row that proves its commit, and the report to brokers."""

from __future__ import annotations

import functools

from django.db import Error, transaction

from txmsg.checker.fence import Fence
from txmsg.client.flows.flow import report_commit, report_outcome
from txmsg.client.producer import Producer
from txmsg.client.sending.half import Half
from txmsg.contrib.django import rows
from txmsg.errors import MisuseError
from txmsg.message import TransactionState
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)


def end_with_commit(producer: Producer, half: Half, using: str, *, wait: bool = False) -> None:
    """Write the fence row, and report COMMIT to the broker when the outermost block of `atomic` commits.

    Both belong to the innermost savepoint: if it is rolled back, the row is gone and nothing is reported. wait: for the
    broker's reply. Raises TransactionRefused, StorageError.
    """
    # The row first (decision 0074): if it cannot be written, no function is registered that would report a commit.
    rows.write_fence(using, half.transaction_id, fence_of(producer).fence_id())
    transaction.on_commit(functools.partial(_tell_committed, producer, half, using, wait), using=using)


def fence_of(producer: Producer) -> Fence:
    """Return the fence that proves the producer's commits. Raises MisuseError for a producer without one."""
    if producer.fence is None:
        raise MisuseError(
            f"the producer of group {producer.group} has no fence, which proves what committed: give "
            "check_listener=FenceCheckListener(engine), or leave producer= out"
        )
    return producer.fence


def _tell_committed(producer: Producer, half: Half, using: str, wait: bool) -> None:
    """Report COMMIT if the row is there after the commit, else UNKNOWN.

    PostgreSQL answers COMMIT of a failed transaction with a silent ROLLBACK, and Django calls on_commit all the same.
    """
    try:
        is_there = rows.is_fence_written(using, half.transaction_id)
    except Error as exc:
        is_there = False
        _log.warning(
            "transaction.fence_unreadable",
            "transaction %(transaction_id)s: its fence cannot be read (%(error)s); the broker checks back later",
            transaction_id=half.transaction_id,
            error=exc,
        )
    if is_there:
        report_commit(producer, half, wait=wait)
    else:
        # Not ROLLBACK: an absent row may also be one that could not be read. The check decides it by the fence.
        report_outcome(producer, half, TransactionState.UNKNOWN, wait=True)
