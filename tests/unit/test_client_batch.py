"""The columns of a request, and the results of a reply for each caller."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from uuid import UUID

import pytest

from txmsg.client.sending.batch import EndEntry, SendEntry, columns_of, end_request, settle
from txmsg.errors import (
    BrokerUnavailable,
    InvalidMessage,
    MessageTooLarge,
    OutcomeConflict,
    OutcomeExpired,
    OutcomeUnknown,
    TxmsgError,
    UnknownTopic,
)
from txmsg.message import BODY_SIZE_BYTES_MAX, Message, TransactionState
from txmsg.wire.codec import unpack_headers
from txmsg.wire.v1.txmsg_pb2 import ItemError

SHARD = b"h" * 16


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_a_column_that_is_empty_for_all_messages_is_left_out() -> None:
    [columns] = columns_of([SendEntry(id_of(i), [Message("t", b"b%d" % i)], None) for i in range(3)])
    assert columns.topic == "t"
    assert columns.transaction_id == id_of(0) + id_of(1) + id_of(2)
    assert list(columns.body) == [b"b0", b"b1", b"b2"]
    assert len(columns.born_at_us) == 3
    assert (len(columns.n), len(columns.key), len(columns.tag), len(columns.headers)) == (0, 0, 0, 0)


def test_a_column_that_one_message_needs_is_sent_for_all() -> None:
    full = Message("t", b"2", key="k", tag="g", headers={"a": "ü"})
    [columns] = columns_of([SendEntry(id_of(1), [Message("t", b"1"), full], None)])
    assert list(columns.n) == [0, 1]
    assert list(columns.key) == ["", "k"]
    assert list(columns.tag) == ["", "g"]
    assert unpack_headers(columns.headers[1]) == {"a": "ü"}
    assert columns.headers[0] == b""


def test_a_first_check_delay_of_zero_is_not_the_default_of_the_group() -> None:
    afters = [None, timedelta(0), timedelta(minutes=5)]
    [columns] = columns_of(
        [SendEntry(id_of(i), [Message("t", b"", first_check_after=after)], None) for i, after in enumerate(afters)]
    )
    assert list(columns.first_check_ms) == [0, 1, 300_000]


def test_a_transaction_of_several_topics_keeps_its_numbering() -> None:
    entry = SendEntry(id_of(1), [Message("a", b"0"), Message("b", b"1"), Message("a", b"2")], None)
    of_a, of_b = columns_of([entry])
    assert (list(of_a.n), list(of_a.body)) == ([0, 2], [b"0", b"2"])
    assert (list(of_b.n), list(of_b.body)) == ([1], [b"1"])
    assert of_b.transaction_id == id_of(1)


def test_a_transaction_larger_than_a_request_is_refused() -> None:
    with pytest.raises(MessageTooLarge, match="one request"):
        SendEntry(id_of(1), [Message("t", b"x" * BODY_SIZE_BYTES_MAX)] * 2, None)
    with pytest.raises(InvalidMessage, match="1001 messages"):
        SendEntry(id_of(1), [Message("t", b"x")] * 1001, None)
    with pytest.raises(InvalidMessage, match="0 messages"):
        SendEntry(id_of(1), [], None)


def test_outcomes_are_grouped_by_kind() -> None:
    states = [TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN, TransactionState.COMMIT]
    request = end_request("shop", SHARD, [EndEntry(id_of(i), state, None) for i, state in enumerate(states)])
    assert request.shard == SHARD
    assert request.commit == id_of(0) + id_of(3)
    assert request.rollback == id_of(1)
    assert request.unknown == id_of(2)
    assert request.group == "shop"


def test_items_without_an_error_have_succeeded() -> None:
    waiters: list[Future[bytes]] = [Future() for _ in range(3)]
    entries = [EndEntry(id_of(i), TransactionState.COMMIT, waiters[i]) for i in range(3)]
    errors = [
        ItemError(transaction_id=id_of(1), code="unknown_topic", text="no topic"),
        ItemError(transaction_id=id_of(2), code="outcome_unknown", text="standby"),
    ]
    again, error = settle(entries, SHARD, errors)
    assert waiters[0].result(0) == SHARD
    with pytest.raises(UnknownTopic, match="no topic"):
        waiters[1].result(0)
    assert not waiters[2].done()
    assert again == [entries[2]]
    assert isinstance(error, OutcomeUnknown)


@pytest.mark.parametrize("unknown", [0, 1])
def test_a_retry_is_ambiguous_if_any_of_its_items_may_be_stored(unknown: int) -> None:
    codes = ["broker_unavailable", "broker_unavailable"]
    codes[unknown] = "outcome_unknown"
    entries = [EndEntry(id_of(i), TransactionState.COMMIT, None) for i in range(2)]
    errors = [ItemError(transaction_id=id_of(i), code=code, text="told so") for i, code in enumerate(codes)]
    again, error = settle(entries, SHARD, errors)
    assert again == entries
    assert isinstance(error, OutcomeUnknown)


def test_a_send_without_a_waiter_is_abandoned_but_an_outcome_is_not() -> None:
    waiter: Future[bytes] = Future()
    send = SendEntry(id_of(1), [Message("t", b"x")], waiter)
    end = EndEntry(id_of(1), TransactionState.COMMIT, waiter)
    assert not send.abandoned()
    waiter.cancel()
    assert send.abandoned()
    assert not end.abandoned()


def test_a_conflict_is_raised_to_the_caller_and_logged_only_without_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ended(*, gone: bool, error: TxmsgError, state: TransactionState = TransactionState.COMMIT) -> Future[bytes]:
        waiter: Future[bytes] = Future()
        entry = EndEntry(id_of(7), state, waiter)
        if gone:
            entry.forsake()
        entry.fail(error)
        return waiter

    assert isinstance(ended(gone=False, error=OutcomeConflict("no")).exception(0), OutcomeConflict)
    ended(gone=True, error=BrokerUnavailable("away"))  # the check-back mends it
    ended(gone=True, error=OutcomeExpired("unknown"), state=TransactionState.ROLLBACK)  # nothing was to be delivered
    assert caplog.records == []
    ended(gone=True, error=OutcomeConflict("no"))
    ended(gone=True, error=OutcomeExpired("unknown"))
    ended(gone=True, error=OutcomeConflict("no"), state=TransactionState.ROLLBACK)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    said = [record.getMessage() for record in caplog.records]
    assert all(f"transaction {UUID(bytes=id_of(7))} " in each for each in said)
    assert "COMMITTED" in said[0]
    assert "COMMITTED" in said[1]
    assert "ROLLED BACK in its own database, but the broker has delivered its messages" in said[2]


def test_a_conflict_just_before_the_caller_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    entry = EndEntry(id_of(7), TransactionState.COMMIT, Future())
    entry.fail(OutcomeConflict("no"))
    entry.forsake()
    assert "COMMITTED" in caplog.text


def test_a_conflict_after_a_coroutine_was_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    waiter: Future[bytes] = Future()
    waiter.cancel()
    EndEntry(id_of(7), TransactionState.COMMIT, waiter).fail(OutcomeConflict("no"))
    assert "COMMITTED" in caplog.text
