"""For any bytes, a broker answers with its own errors, stays intact, and serves its good clients."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.broker_process import BrokerProcess
from tests.fuzz.conftest import Fuzz
from tests.fuzz.target import BrokerUnderFuzz, broken_rules
from tests.fuzz.wild import Exchange, exchanges, frames
from tests.integration.client_harness import WAIT_S, collecting
from txmsg.client import Producer
from txmsg.message import Message, TransactionState

_GROWTH_BYTES_MAX = 200 * 1024 * 1024
_SETTINGS = settings(max_examples=40, suppress_health_check=list(HealthCheck))


def test_random_requests_do_not_harm_broker_database_or_other_clients(
    broker: BrokerProcess, notify_url: str, fuzz: Fuzz
) -> None:
    with BrokerUnderFuzz(broker) as target:
        _serves_good_clients(broker)
        before_bytes = target.rss_bytes()

        @_SETTINGS
        @given(st.lists(exchanges(), min_size=1, max_size=8))
        def calls(batch: list[Exchange]) -> None:
            target.exchange(batch)

        @_SETTINGS
        @given(frames())
        def streams(sent: list[bytes]) -> None:
            target.attach(sent)

        def calls_with_new_ids() -> None:
            target.renew_ids()
            calls()

        fuzz(calls_with_new_ids)
        fuzz(streams)
        growth_bytes = target.rss_bytes() - before_bytes
        print(f"\n{target.calls} calls, the broker grew by {growth_bytes} bytes:")
        print(*sorted(target.answers.items()), sep="\n")
        assert target.complaints() == []
        assert broken_rules(notify_url) == []
        _serves_good_clients(broker)
        assert growth_bytes < _GROWTH_BYTES_MAX


def _serves_good_clients(broker: BrokerProcess) -> None:
    """Send a transaction and consume it, among any other messages in the queues."""
    with Producer(broker.address, group="good") as producer, collecting(broker.address, "good", group="good") as got:
        half = producer.half([Message("good", b"good", key="k")])
        producer.end(half, TransactionState.COMMIT)
        wanted = half.transaction_id
        message = got.get(timeout=WAIT_S)
        while message.transaction_id != wanted:
            message = got.get(timeout=WAIT_S)
        assert (message.body, message.key) == (b"good", "k")
