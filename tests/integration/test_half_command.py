"""`txmsg half`: undecided transactions as shown to an operator, and an operator's decisions."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import psycopg
import pytest
from click.testing import CliRunner

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.cli_harness import listed, said, store_half
from tests.integration.client_harness import WAIT_S, collecting
from tests.methods import made
from txmsg.administration.halves import HalfMessage, HalfPage, HalfQuery
from txmsg.broker.store import halves
from txmsg.broker.store.connect import open_pool
from txmsg.client import Producer
from txmsg.message import Message, ReceivedMessage, TransactionState, new_transaction_id
from txmsg.ops.cli.main import main


def test_half_list_shows_undecided_halves_and_filters_by_group(broker: BrokerProcess) -> None:
    assert "no half messages" in said("half", "list", "--broker", broker.address)
    first, second = store_half(broker), store_half(broker, group="other")
    assert listed(broker) == [first, second]
    assert "no client can answer" in said("half", "list", "--broker", broker.address)
    assert listed(broker, "--group", "other") == [second]
    assert listed(broker, "--limit", "1") == [first]
    assert listed(broker, "--parked") == []
    table = said("half", "list", "--broker", broker.address)
    assert first in table
    assert "order.placed" in table


def test_half_list_shows_held_back_messages_and_the_blocking_transaction(broker: BrokerProcess) -> None:
    with Producer(broker.address, group="shop") as producer:
        first, second = (producer.half([Message("orders", b"", ordering_key="k")]) for _ in range(2))
        producer.end(second, TransactionState.COMMIT)
        plain = producer.send(Message("orders", b"", ordering_key="k"))
        found = json.loads(said("half", "list", "--json", "--broker", broker.address))["halves"]
        assert [(each["transaction_id"], each["committed"], each["held_back_by"]) for each in found] == [
            (str(first.transaction_id), False, None),
            (str(second.transaction_id), True, str(first.transaction_id)),
            (plain.removesuffix(".0"), True, str(first.transaction_id)),
        ]
        shown = said("half", "list", "--broker", broker.address)
        assert shown.count(f"committed; waits for {first.transaction_id}") == 2
        producer.end(first, TransactionState.ROLLBACK)
        assert listed(broker) == []


def test_half_show_prints_headers_and_body(broker: BrokerProcess) -> None:
    transaction_id = store_half(broker, body=b"caf\xc3\xa9 \xff [red]")
    [half] = json.loads(said("half", "show", transaction_id, "--broker", broker.address, "--json"))["halves"]
    assert half["transaction_id"] == transaction_id
    assert half["headers"] == {"h": "1"}
    assert half["body"] == "café \\xff [red]"
    assert (half["group"], half["topic"], half["key"], half["tag"]) == ("shop", "order.placed", "k1", "t1")
    assert half["born_at"] == "2023-11-14T22:13:20+00:00"
    for each in (transaction_id, f"{transaction_id}.0"):
        assert "café \\xff [red]" in said("half", "show", each, "--broker", broker.address)


def test_half_show_of_an_unknown_transaction_fails(broker: BrokerProcess) -> None:
    error = said("half", "show", str(new_transaction_id()), "--broker", broker.address, status=1)
    assert "there is no half message of transaction" in error


def test_a_decision_of_an_operator_is_final(broker: BrokerProcess) -> None:
    committed, dropped = store_half(broker), store_half(broker)
    where = ("--broker", broker.address)
    assert f"{committed} committed" in said("half", "commit", committed, *where, "--yes")
    assert f"{dropped} rolled back" in said("half", "rollback", dropped, *where, "--yes")
    assert listed(broker) == []
    said("half", "rollback", committed, *where, "--yes", status=1)
    said("half", "commit", dropped, *where, "--yes", status=1)


def test_a_decision_is_confirmed_and_can_be_declined(start_broker: StartBroker) -> None:
    broker = start_broker("--first-check-s", "600")
    half = store_half(broker)
    said("half", "commit", half, "--broker", broker.address, answer="n\n", status=1)
    assert listed(broker) == [half]
    assert "committed" in said("half", "commit", half, "--broker", broker.address, answer="y\n")


def test_a_transaction_of_many_messages_is_shown_and_confirmed_as_a_whole(start_broker: StartBroker) -> None:
    broker = start_broker("--first-check-s", "600")
    transaction_id = store_half(broker, count=250)
    where = ("--broker", broker.address)
    shown = json.loads(said("half", "show", transaction_id, *where, "--json"))
    assert [half["n"] for half in shown["halves"]] == list(range(250))
    assert shown["next"] is None
    asked = said("half", "commit", transaction_id, *where, answer="y\n")
    assert "deliver 250 message(s) of shop to order.placed, for good?" in asked


def test_a_truncated_reply_is_marked_as_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime.now(UTC)
    half = made(HalfMessage, transaction_id=new_transaction_id(), topic="t", group="g", born_at=at, stored_at=at)
    requests: list[object] = []

    def answer(broker: str, method: str, request: object) -> object:
        requests.append(request)
        return HalfPage(halves=[half] * 2, next="1.x.1")

    monkeypatch.setattr("txmsg.ops.cli.half.ask_broker", answer)
    transaction_id = str(half.transaction_id)
    shown = CliRunner().invoke(main, ["half", "show", transaction_id])
    assert "only the first 2 of its messages are shown" in shown.stderr
    assert json.loads(CliRunner().invoke(main, ["half", "show", transaction_id, "--json"]).stdout)["next"]
    asked = CliRunner().invoke(main, ["half", "rollback", transaction_id], input="n\n")
    assert "drop more than 2 message(s) of g to t, for good?" in asked.output
    [*_, last] = requests
    assert isinstance(last, HalfQuery)  # nothing was decided
    assert not last.with_bodies


# ---- parked halves, resumed


def park(notify_url: str, *transaction_ids: str) -> None:
    """Park halves, as the check loop does when their checks are used up."""
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        parked = connection.execute(
            "update txmsg.half_message set next_check_at = null, checks = 15, parked_reason = 'checks used up' "
            "where transaction_id = any(%s::uuid[]) and n = 0",
            (list(transaction_ids),),
        )
        assert parked.rowcount == len(transaction_ids)


def checks_of(broker: BrokerProcess) -> dict[str, tuple[int, bool]]:
    """Return the number of checks of each transaction, and whether another one is due."""
    halves = json.loads(said("half", "list", "--broker", broker.address, "--json"))["halves"]
    return {half["transaction_id"]: (half["checks"], half["next_check_at"] is not None) for half in halves}


def test_a_resumed_half_is_committed_when_its_listener_answers_again(
    start_broker: StartBroker, notify_url: str
) -> None:
    broker = start_broker("--first-check-s", "600")
    asked: list[str] = []

    class Listener:
        def check(self, message: ReceivedMessage) -> TransactionState:
            asked.append(str(message.transaction_id))
            return TransactionState.COMMIT

    resumed, parked = store_half(broker, count=2), store_half(broker)
    park(notify_url, resumed, parked)
    with (
        Producer(broker.address, group="shop", check_listener=Listener()),
        collecting(broker.address, "order.placed") as got,
    ):
        told = said("half", "resume", resumed, "--broker", broker.address)
        assert told == f"{resumed} is checked again\n"
        assert {str(got.get(timeout=WAIT_S).transaction_id) for _ in range(2)} == {resumed}
    assert asked == [resumed]
    assert listed(broker, "--parked") == [parked]


def test_resuming_a_group_resumes_all_its_halves_and_no_others(start_broker: StartBroker, notify_url: str) -> None:
    broker = start_broker("--first-check-s", "600")
    mine, other = [store_half(broker), store_half(broker)], store_half(broker, group="other")
    park(notify_url, *mine, other)
    again = ("half", "resume", "--group", "shop", "--broker", broker.address)
    assert said(*again) == "transactions of shop that are checked again: 2\n"
    assert checks_of(broker) == {mine[0]: (0, True), mine[1]: (0, True), other: (15, False)}
    assert json.loads(said(*again, "--json")) == {"resumed": 0}


def test_a_group_larger_than_one_statement_is_resumed_completely(
    start_broker: StartBroker, notify_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker("--first-check-s", "600")
    parked = [store_half(broker) for _ in range(3)]
    park(notify_url, *parked)
    monkeypatch.setattr(halves, "_RESUME_BATCH", 2)

    async def resume() -> int:
        async with open_pool(notify_url) as pool:
            return await halves.HalfMessages(pool).resume(group="shop")

    assert asyncio.run(resume()) == 3
    assert listed(broker, "--parked") == []


def test_resuming_an_unknown_or_unparked_half_is_refused(start_broker: StartBroker) -> None:
    broker = start_broker("--first-check-s", "600")
    where = ("--broker", broker.address)
    transaction_id = store_half(broker)
    before = checks_of(broker)
    told = said("half", "resume", transaction_id, *where, status=1)
    assert f"Error: transaction {transaction_id} is not parked: its next check comes at 20" in told
    assert checks_of(broker) == before
    told = said("half", "resume", str(new_transaction_id()), *where, status=1)
    assert "there is no half message of transaction" in told
    for command in (["half", "resume"], ["half", "resume", transaction_id, "--group", "shop"]):
        result = CliRunner().invoke(main, command)
        assert (result.exit_code, "name one transaction, or a producer group" in result.output) == (2, True)


# ---- JSON


def test_decisions_and_lists_can_be_printed_as_json(start_broker: StartBroker) -> None:
    broker = start_broker("--first-check-s", "600")
    first, second = store_half(broker), store_half(broker)
    where = ("--broker", broker.address, "--json")
    pages = [json.loads(said("half", "list", *where, "--limit", "1"))]
    while pages[-1]["next"]:
        pages.append(json.loads(said("half", "list", *where, "--limit", "1", "--page", pages[-1]["next"])))
    ids = [half["transaction_id"] for page in pages for half in page["halves"]]
    assert ids == [half["transaction_id"] for half in json.loads(said("half", "list", *where))["halves"]]
    assert len(ids) > 1
    told = said("half", "commit", first, *where, answer="y\n")
    committed = json.loads(told.removeprefix(" y\n"))  # up to click 8.3, CliRunner echoes the answer here
    assert committed == {"transaction_id": first, "outcome": "committed"}
    dropped = json.loads(said("half", "rollback", second, *where, "--yes"))
    assert dropped == {"transaction_id": second, "outcome": "rolled back"}
