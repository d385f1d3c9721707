"""Producers with real brokers."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.client_harness import WAIT_S, collecting, half_count, message_count, nothing_comes
from tests.waiting import until
from txmsg.checker.fence import FenceCheckListener
from txmsg.client import AsyncProducer, Producer
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeConflict
from txmsg.message import Message, TransactionState, message_id


def test_a_message_arrives_with_all_its_fields(broker: BrokerProcess) -> None:
    with Producer(broker.address, group="p", timeout_s=WAIT_S) as producer, collecting(broker.address, "user") as got:
        sent = producer.send(Message("user", b"body", key="k", tag="signup", headers={"trace": "ü"}))
        message = got.get(timeout=WAIT_S)
    assert (message.id, message.topic, message.body, message.key, message.tag) == (sent, "user", b"body", "k", "signup")
    assert message.headers == {"trace": "ü"}
    assert message.attempt == 1


def test_an_unanswered_half_is_an_unavailable_broker(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds as the decorator promises, even if the caller's own wait ends first."""
    monkeypatch.setattr("txmsg.client.producer._GRACE_S", 0.0)
    with Producer(broker.address, group="p", timeout_s=WAIT_S) as producer:
        producer.half([Message("t", b"x")])
        producer._core.timeout_s = 0.1
        broker.pause()
        with pytest.raises(BrokerUnavailable, match="its check-back removes it"):
            producer.half([Message("t", b"x")])
        broker.resume()
        producer._core.timeout_s = WAIT_S


def test_many_messages_of_one_call_share_a_transaction(broker: BrokerProcess, notify_url: str) -> None:
    with Producer(broker.address, group="p", timeout_s=WAIT_S) as producer:
        ids = producer.send_many([Message("a", b"1"), Message("b", b"2"), Message("a", b"3")])
        assert producer.send_many([]) == []
    assert len({sent_id.partition(".")[0] for sent_id in ids}) == 1
    assert [sent_id.partition(".")[2] for sent_id in ids] == ["0", "1", "2"]
    assert message_count(notify_url) == 3


def test_a_half_message_is_delivered_after_commit_and_not_before(broker: BrokerProcess) -> None:
    with Producer(broker.address, group="p", timeout_s=WAIT_S) as producer, collecting(broker.address, "user") as got:
        half = producer.half([Message("user", b"x")])
        assert nothing_comes(got)
        producer.end(half, TransactionState.COMMIT)
        assert got.get(timeout=WAIT_S).id == message_id(half.transaction_id, 0)
        producer.end(half, TransactionState.COMMIT)  # a repeated outcome is accepted
        with pytest.raises(OutcomeConflict):
            producer.end(half, TransactionState.ROLLBACK)


def test_a_rolled_back_half_message_is_never_delivered(broker: BrokerProcess, notify_url: str) -> None:
    with Producer(broker.address, group="p", timeout_s=WAIT_S) as producer:
        half = producer.half([Message("user", b"x"), Message("user", b"y")])
        assert half_count(notify_url) == 2
        producer.end(half, TransactionState.ROLLBACK)
        assert half_count(notify_url) == 0
        with pytest.raises(OutcomeConflict):
            producer.end(half, TransactionState.COMMIT)
    assert message_count(notify_url) == 0


def test_a_half_sent_twice_is_one_half(broker: BrokerProcess, notify_url: str) -> None:
    with Producer(broker.address, group="p", timeout_s=WAIT_S) as producer:
        half = producer.half([Message("user", b"x")])
        assert producer.half([Message("user", b"x")], transaction_id=half.transaction_id) == half
        producer.end(half, TransactionState.COMMIT)
    assert message_count(notify_url) == 1


def test_without_a_broker_the_call_fails_within_its_deadline() -> None:
    with Producer("127.0.0.1:1", group="p", timeout_s=0.5) as producer:
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
            producer.send(Message("user", b"x"))
        with pytest.raises(BrokerUnavailable):
            producer.half([Message("user", b"x")])


def test_a_producer_reconnects_to_a_restarted_broker(broker: BrokerProcess, notify_url: str) -> None:
    with Producer(broker.address, group="p", timeout_s=WAIT_S) as producer:
        producer.send(Message("user", b"1"))
        broker.kill()
        with ThreadPoolExecutor() as threads:
            sending = threads.submit(producer.send, Message("user", b"2"))
            broker.start()
            sending.result(WAIT_S)
    assert message_count(notify_url) == 2


def test_when_one_broker_is_killed_the_next_takes_over(start_broker: StartBroker, notify_url: str) -> None:
    first, second = start_broker(), start_broker()
    with Producer([first.address, second.address], group="p") as producer:
        half = producer.half([Message("user", b"1")])
        first.kill()
        producer.end(half, TransactionState.COMMIT)
        producer.send(Message("user", b"2"))
    assert message_count(notify_url) == 2


def test_a_send_executed_late_by_a_paused_broker_is_stored_once(start_broker: StartBroker, notify_url: str) -> None:
    first, second = start_broker(), start_broker()
    with Producer([first.address, second.address], group="p", timeout_s=6.0) as producer:
        producer.send(Message("user", b"1"))
        first.pause()
        producer.send(Message("user", b"2"))  # the first does not answer: the second gets the same ids
        half = producer.half([Message("user", b"3")])
        first.resume()
        producer.end(half, TransactionState.COMMIT)
        first.stop()  # stopped cleanly: it has executed pending requests
    assert message_count(notify_url) == 3
    assert half_count(notify_url) == 0


async def test_threads_and_coroutines_lose_nothing_under_load(broker: BrokerProcess, notify_url: str) -> None:
    with Producer(broker.address, group="p", timeout_s=WAIT_S) as producer:

        def thread() -> None:
            for _ in range(10):
                half = producer.half([Message("user", b"x")])
                producer.end(half, TransactionState.COMMIT)

        threads = [threading.Thread(target=thread) for _ in range(20)]
        for running in threads:
            running.start()
        async with AsyncProducer(broker.address, group="p", timeout_s=WAIT_S) as asynchronous:

            async def coroutine() -> None:
                for _ in range(10):
                    half = await asynchronous.half([Message("user", b"x")])
                    await asynchronous.end(half, TransactionState.COMMIT)

            await asyncio.gather(*(coroutine() for _ in range(50)))
        for running in threads:
            running.join(WAIT_S)
    assert message_count(notify_url) == 700
    assert half_count(notify_url) == 0


async def test_a_cancelled_caller_does_not_affect_others(broker: BrokerProcess, notify_url: str) -> None:
    async with AsyncProducer(broker.address, group="p", timeout_s=WAIT_S) as producer:
        calls = [asyncio.create_task(producer.send(Message("user", b"x"))) for _ in range(20)]
        await asyncio.sleep(0)  # all are queued, none has left
        for call in calls[::2]:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, str) for result in results) == 10
    assert message_count(notify_url) == 10


async def test_an_async_producer_belongs_to_one_loop(broker: BrokerProcess) -> None:
    producer = AsyncProducer(broker.address, group="p", timeout_s=WAIT_S)

    async def on_first_loop() -> None:
        await producer.send(Message("user", b"x"))

    async def on_second_loop() -> None:
        with pytest.raises(MisuseError, match="another event loop"):
            await producer.send(Message("user", b"x"))

    await on_first_loop()
    await asyncio.to_thread(asyncio.run, on_second_loop())
    await producer.close()


def test_a_closed_producer_refuses_calls(broker: BrokerProcess) -> None:
    producer = Producer(broker.address, group="p", timeout_s=WAIT_S).start()
    producer.close()
    producer.close()
    with pytest.raises(MisuseError, match="the producer is closed: make a new one"):
        producer.send(Message("user", b"x"))


def test_a_garbage_collected_producer_warns_and_is_closed(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(broker.address, group="p", timeout_s=WAIT_S) as producer:
        producer.send(Message("t", b"x"))
    open_before = psutil.Process().num_fds()
    with pytest.warns(ResourceWarning, match=r"unclosed producer of group 'dropped': call close\(\), or use `with`"):
        Producer(broker.address, group="dropped", timeout_s=WAIT_S).send(Message("t", b"x"))
    until(lambda: psutil.Process().num_fds() <= open_before, why="its connections stay open")
    assert "unclosed producer of group 'dropped'" in caplog.text


def test_a_producer_that_fails_to_start_in_with_is_closed_and_otherwise_can_start_again(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'absent' / 'shop.db'}")
    failing = Producer(broker.address, group="f", timeout_s=WAIT_S, check_listener=FenceCheckListener(engine))
    for _ in range(2):
        with pytest.raises(OperationalError, match="unable to open database file"):
            failing.start()
    with pytest.raises(OperationalError, match="unable to open database file"), failing:
        pass
    with pytest.raises(MisuseError, match="the producer is closed"):
        failing.start()
    engine.dispose()
