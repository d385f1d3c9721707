"""Clients that the gateway checks for the outcome of a transaction, and the topics for which it is attached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from txmsg.client.channel import Brokers
from txmsg.message import ReceivedMessage, TransactionState
from txmsg.rocketmq.clients import TOPICS_MAX, GatewayClient, GatewayClients
from txmsg.rocketmq.tasks import Tasks

_HALF = ReceivedMessage("orders", b"x", id_bytes=bytes(16))


class NoBrokers(Brokers):
    """A broker list without brokers."""

    def __init__(self) -> None:
        super().__init__(["none:1"])

    @property
    def addresses(self) -> list[str]:
        return []


@pytest.fixture
async def clients() -> AsyncIterator[GatewayClients]:
    tasks = Tasks()
    yield GatewayClients(NoBrokers(), tasks)
    await tasks.close()


def _attached(clients: GatewayClients, name: str, *topics: str) -> GatewayClient:
    client = GatewayClient(name)
    clients.attach(client)
    clients.names(name, topics)
    return client


async def _asked(clients: GatewayClients, *able: GatewayClient) -> GatewayClient:
    """Return the one of these clients that is checked. It answers COMMIT."""
    asking = asyncio.create_task(clients.ask_client("orders", _HALF))
    getting = [asyncio.create_task(client.commands.get()) for client in able]
    done, others = await asyncio.wait(getting, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    [index] = [getting.index(task) for task in done]
    clients.ended(able[index].id, "orders", _HALF.id_bytes, TransactionState.COMMIT)
    assert await asking is TransactionState.COMMIT
    return able[index]


async def test_a_client_that_sends_only_plain_messages_is_not_checked(clients: GatewayClients) -> None:
    plain = _attached(clients, "plain", "orders")
    assert clients.attached == {"orders"}, "it may have taken the place of a producer that died"
    clients.has_sent("plain", "orders", half=False)
    assert clients.attached == set()
    assert await clients.ask_client("orders", _HALF) is TransactionState.UNKNOWN
    clients.names("plain", ["orders"])  # clients repeat it regularly
    assert (clients.attached, plain.unanswered) == (set(), 0)
    clients.has_sent("plain", "orders", half=True)
    clients.has_sent("plain", "orders", half=False)
    assert clients.attached == {"orders"}
    assert await _asked(clients, plain) is plain


async def test_clients_that_sent_halves_are_checked_first_and_silent_ones_last(clients: GatewayClients) -> None:
    new, old = _attached(clients, "new", "orders"), _attached(clients, "old", "orders")
    clients.has_sent("old", "orders", half=True)
    assert await _asked(clients, new, old) is old
    clients.has_sent("new", "orders", half=True)
    old.unanswered = 1
    assert await _asked(clients, new, old) is new
    clients.ended("old", "orders", bytes(15) + b"x", TransactionState.COMMIT)  # unasked: it works
    assert old.unanswered == 0
    clients.detach(old)
    assert await _asked(clients, new) is new


async def test_a_client_with_unanswered_checks_comes_after_one_that_sent_nothing(clients: GatewayClients) -> None:
    hung, new = _attached(clients, "hung"), _attached(clients, "new", "orders")
    clients.has_sent("hung", "orders", half=True)
    hung.unanswered = 1
    assert await _asked(clients, hung, new) is hung, "it may be about to answer"
    hung.unanswered = 2
    assert await _asked(clients, hung, new) is new
    new.unanswered = 3
    assert await _asked(clients, hung, new) is hung


async def test_a_client_that_names_no_topic_is_checked_for_topics_of_its_halves(clients: GatewayClients) -> None:
    client = _attached(clients, "c")
    clients.has_sent("c", "news", half=False)
    clients.has_sent("c", "orders", half=True)
    assert clients.attached == {"orders"}
    assert await _asked(clients, client) is client
    clients.detach(client)
    assert clients.attached == set()
    clients.has_sent("c", "orders", half=True)  # a send that ended after its client had gone
    assert clients.attached == set()


async def test_a_second_stream_of_a_client_is_checked_for_the_same_topics(clients: GatewayClients) -> None:
    first = _attached(clients, "c")
    clients.has_sent("c", "orders", half=True)
    second = _attached(clients, "c")
    clients.detach(first)
    assert await _asked(clients, second) is second
    clients.detach(second)
    assert clients.attached == set()


async def test_an_outcome_of_one_topic_does_not_answer_a_check_of_another(clients: GatewayClients) -> None:
    asked = _attached(clients, "asked", "orders")
    asking = asyncio.create_task(clients.ask_client("orders", _HALF))
    await asked.commands.get()
    clients.ended("stranger", "trades", _HALF.id_bytes, TransactionState.ROLLBACK)
    clients.ended("asked", "orders", _HALF.id_bytes, TransactionState.COMMIT)
    assert await asking is TransactionState.COMMIT


async def test_topics_of_a_client_are_bounded(clients: GatewayClients) -> None:
    client = _attached(clients, "c", *map(str, range(TOPICS_MAX + 5)))
    assert clients.attached == {*map(str, range(5, TOPICS_MAX + 5))}
    for number in range(2 * TOPICS_MAX):
        clients.has_sent("c", f"p{number}", half=False)
    assert len(client.topics) == TOPICS_MAX
    assert "4" not in client.topics
    assert "5" in client.topics, "plain messages take no topic's place"


async def test_changed_rules_update_the_attached_topics_of_the_gateway(clients: GatewayClients) -> None:
    allowed = {"orders", "news"}
    client = GatewayClient("c", allowed.__contains__)
    clients.attach(client)
    clients.names("c", ["orders", "news", "trades"])
    clients.has_sent("c", "orders", half=True)
    assert clients.attached == {"orders", "news"}
    for now in ({"news"}, {"news", "orders", "trades"}, set(), {"orders"}):
        allowed.clear()
        allowed.update(now)
        clients.look_again()
        clients.has_sent("c", "orders", half=True)  # no change
        assert clients.attached == now
    assert await _asked(clients, client) is client


async def test_an_exception_of_a_task_is_logged_and_other_tasks_continue(caplog: pytest.LogCaptureFixture) -> None:
    tasks, goes_on = Tasks(), asyncio.Event()

    async def fails() -> None:
        raise ValueError("no such luck")

    async def works() -> None:
        await goes_on.wait()
        raise ValueError("in its grace")

    tasks.start(fails(), name="a task")
    tasks.start(works(), name="another")
    forever: Any = asyncio.Event().wait()
    endless = tasks.start(forever, name="endless")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "a task failed unexpectedly: ValueError('no such luck')" in caplog.text
    goes_on.set()
    await tasks.close(0.01)
    assert endless.cancelled()
    assert "another failed unexpectedly" in caplog.text
