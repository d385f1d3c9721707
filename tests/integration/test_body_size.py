"""The largest allowed body is stored, checked and delivered."""

from __future__ import annotations

import hashlib
import random

import pytest

from tests.conftest import StartBroker
from tests.integration.client_harness import WAIT_S, collecting
from txmsg.client import Producer
from txmsg.errors import MessageTooLarge
from txmsg.message import BODY_SIZE_BYTES_CEILING, BODY_SIZE_BYTES_MAX, Message, ReceivedMessage, TransactionState


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def test_the_largest_allowed_body_is_stored_checked_and_delivered(start_broker: StartBroker) -> None:
    broker = start_broker(
        *("--body-size-max", str(BODY_SIZE_BYTES_CEILING)),
        # Time for the answer: a check that comes too soon for a busy machine would only make it busier.
        *("--first-check-s", "0", "--check-interval-s", "30"),
    )
    body = random.Random(1).randbytes(BODY_SIZE_BYTES_CEILING)  # which PostgreSQL does not try to compress for long
    checked: list[str] = []

    class Listener:
        def check(self, message: ReceivedMessage) -> TransactionState:
            checked.append(digest_of(message.body))
            return TransactionState.COMMIT

    with (
        Producer(broker.address, group="p", check_listener=Listener(), timeout_s=2 * WAIT_S) as producer,
        collecting(broker.address, "t") as got,
    ):
        producer.half([Message("t", body)])  # its outcome is left to the check
        assert digest_of(got.get(timeout=2 * WAIT_S).body) == digest_of(body)
        assert set(checked) == {digest_of(body)}
        with pytest.raises(MessageTooLarge, match="the 2 messages of one transaction are about 67108960 bytes"):
            producer.send_many([Message("t", body)] * 2)
        producer.send(Message("t", b"small"))
        assert got.get(timeout=WAIT_S).body == b"small"


def test_a_broker_accepts_bodies_up_to_4_mib_by_default(start_broker: StartBroker) -> None:
    with Producer(start_broker().address, group="p", timeout_s=WAIT_S) as producer:
        producer.send(Message("t", bytes(BODY_SIZE_BYTES_MAX)))
        with pytest.raises(MessageTooLarge, match="body of 4194305 bytes for topic 't' is over the limit of 4194304"):
            producer.send(Message("t", bytes(BODY_SIZE_BYTES_MAX + 1)))
