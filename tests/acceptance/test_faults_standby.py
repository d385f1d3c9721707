"""Durability `replicated`: acknowledged messages survive the primary, and other topics do not wait for the standby."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy.engine import make_url

from tests.acceptance.neighbour import neighbour
from tests.acceptance.served import served
from tests.acceptance.standby import Pair, pair
from tests.broker_process import running_broker
from tests.errors_page import is_documented
from tests.integration.client_harness import received
from tests.waiting import until
from txmsg.broker.config import BrokerConfig
from txmsg.checker.listener import CheckMessageListener
from txmsg.client import AsyncProducer, Producer
from txmsg.errors import BrokerUnavailable, OutcomeUnknown, TxmsgError
from txmsg.message import Message, MessageId, ReceivedMessage, TransactionState
from txmsg.ops.cli.main import main

TOPIC = "orders"
_CALLERS = 12
_BEFORE_KILL = 300
_WAIT_S = 60.0
_BODIES = f"""
    select m.transaction_id::text || '.' || m.n, m.body from txmsg.message m join txmsg.queue q on q.id = m.queue
      join txmsg.topic t on t.id = q.topic_id where t.name = '{TOPIC}'
"""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Pair]:
    with pair(tmp_path) as found:
        found.query(
            "insert into txmsg.topic (name, queue_count, ordered_queues, durability) "
            f"values ('{TOPIC}', 4, 4, 'replicated')"
        )
        found.query(
            "insert into txmsg.queue (topic_id, number) select t.id, g from txmsg.topic t, generate_series(0, 3) g"
        )
        yield found


class Ledger(CheckMessageListener):
    """The committed local transactions of all services."""

    def __init__(self) -> None:
        self.committed: set[str] = set()

    def check(self, message: ReceivedMessage) -> TransactionState:
        is_committed = message.id.rpartition(".")[0] in self.committed
        return TransactionState.COMMIT if is_committed else TransactionState.ROLLBACK


class Load:
    """Transactions, every fourth rolled back, and plain sends, until each caller fails once there is enough."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.sent: set[MessageId] = set()  # which the broker has accepted for delivery
        self.rolled_back: set[str] = set()
        self.enough = asyncio.Event()

    async def run(self, address: str) -> None:
        async with (
            AsyncProducer(address, group="shop", check_listener=self.ledger, timeout_s=2) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(_CALLERS):
                tasks.create_task(self._caller(producer, number))

    async def _caller(self, producer: AsyncProducer, number: int) -> None:
        turn = number
        while True:
            turn += 1
            try:
                if turn % 3 == 0:
                    self.sent.add(await producer.send(Message(TOPIC, b"plain")))
                else:
                    half = await producer.half([Message(TOPIC, b"half")])
                    name = str(half.transaction_id)
                    if turn % 4 == 0:
                        self.rolled_back.add(name)
                        await producer.end(half, TransactionState.ROLLBACK)
                    else:
                        self.ledger.committed.add(name)
                        await producer.end(half, TransactionState.COMMIT)
                        self.sent.add(MessageId(f"{name}.0"))
            except TxmsgError:  # before there is enough, because the machine is busy: a check resolves it
                if self.enough.is_set():
                    return
            if len(self.sent) > _BEFORE_KILL:
                self.enough.set()


def stored(servers: Pair) -> set[str]:
    """Return the transactions of messages on the server that was the standby."""
    rows = servers.query("select transaction_id::text from txmsg.message", of=servers.standby)
    found = {str(row[0]) for row in rows}
    assert len(rows) == len(found), "a message is there twice"
    return found


def fails(producer: Producer, body: bytes, kind: type[TxmsgError], words: str) -> bool:
    """Send, which must fail; return True if the error has these words, which a slow machine may not know in time."""
    with pytest.raises(TxmsgError) as caught:
        producer.send(Message(TOPIC, body))
    assert is_documented(caught.value), caught.value
    return isinstance(caught.value, kind) and words in str(caught.value)


async def test_acknowledged_messages_survive_the_loss_of_the_primary(servers: Pair, tmp_path: Path) -> None:
    ledger = Ledger()
    load = Load(ledger)

    options = ("--first-check-s", "1", "--check-interval-s", "1")
    with running_broker(servers.url, *options, log=tmp_path / "broker.log") as broker:
        loading = asyncio.create_task(load.run(broker.address))
        async with asyncio.timeout(_WAIT_S):
            await load.enough.wait()
        with servers.standby_stands_still():  # so that commits are pending and none is confirmed
            await asyncio.to_thread(until, servers.commit_waits)
            await asyncio.to_thread(servers.kill_primary)
        await loading
        servers.promote()
        standby = servers.standby
        sent = {message_id.rpartition(".")[0] for message_id in load.sent}
        assert sent <= stored(servers), "a message was acknowledged and is lost"
        with Producer(broker.address, group="shop", timeout_s=7) as producer:
            until(lambda: fails(producer, b"safe on one disk only", BrokerUnavailable, "no synchronous standby"))
        # Until there is another standby, an operator may disable the wait.
        servers.query("update txmsg.topic set durability = 'sync'", of=standby)
        with Producer(broker.address, group="shop", check_listener=ledger):
            until(lambda: servers.query("select n from txmsg.half_message limit 1", of=standby) == [], within_s=_WAIT_S)
        assert ledger.committed <= stored(servers), "a transaction is committed and its message lost"
        assert not load.rolled_back & stored(servers), "a transaction was rolled back and its message is there"
        gaps = servers.query(
            "select queue from txmsg.message group by queue having max(queue_offset) <> count(*) - 1", of=standby
        )
        assert gaps == []
        wanted = load.sent | {MessageId(f"{name}.0") for name in ledger.committed}
        assert wanted <= set(await received(broker.address, TOPIC, wanted))


def test_without_the_standby_only_replicated_sends_are_unknown_or_refused(
    servers: Pair,
) -> None:
    """The producer repeats an unknown send with the same id; the repeat must not be reported as safe, either."""
    config = BrokerConfig(storage=servers.url, listen="127.0.0.1:0", standby_wait_s=1)
    with (
        served(config) as address,
        neighbour(address) as good,
        Producer(address, group="shop", timeout_s=4) as producer,
        Producer(address, group="shop", timeout_s=60) as patient,
    ):
        sent = patient.send(Message(TOPIC, b"1"))
        good.goes_on()
        with servers.standby_stands_still():
            until(lambda: fails(producer, b"2", OutcomeUnknown, "not confirmed by its standby"))
            good.goes_on()
        servers.await_standby()
        servers.standby.kill()
        until(lambda: servers.query("select pid from pg_stat_replication") == [])
        until(lambda: fails(producer, b"3", BrokerUnavailable, "no synchronous standby is attached"))
        good.goes_on()
        servers.standby.start()
        servers.await_standby()
        last = patient.send(Message(TOPIC, b"4"))
        bodies = {str(row[0]): row[1] for row in servers.query(_BODIES)}
        assert (bodies[sent], bodies[last]) == (b"1", b"4")
        assert set(bodies.values()) == {b"1", b"2", b"4"}, "the refused one is not there, the unknown one is"
    assert good.errors == []


def test_a_commit_is_reported_as_replicated_only_if_the_standby_confirmed_it(servers: Pair) -> None:
    """PostgreSQL reports success when it ends a wait for a standby: with a warning, or, when the setting that named the
    standby is emptied, as Patroni does when a standby is gone, without one.
    """
    servers.query("alter database notify set client_min_messages = error")  # the client does not get the warning
    config = BrokerConfig(storage=servers.url, listen="127.0.0.1:0", standby_wait_s=2)
    with (
        served(config) as address,
        Producer(address, group="shop", timeout_s=3) as producer,
        ThreadPoolExecutor() as pool,
    ):
        with servers.standby_stands_still():
            sent = pool.submit(fails, producer, b"1", OutcomeUnknown, "standby")
            until(servers.commit_waits)
            servers.name_standbys("")
            assert sent.result()
        servers.name_standbys("*")
        servers.await_standby()
        with servers.standby_stands_still():
            until(lambda: fails(producer, b"2", OutcomeUnknown, "not confirmed by its standby"))
    confirmed_by_those_that_were_named_when_it_began(servers)


def confirmed_by_those_that_were_named_when_it_began(servers: Pair) -> None:
    config = BrokerConfig(storage=servers.url, listen="127.0.0.1:0", standby_wait_s=60, request_timeout_s=90)
    servers.await_standby()
    with (
        served(config) as address,
        Producer(address, group="shop", timeout_s=80) as patient,
        ThreadPoolExecutor() as pool,
    ):
        patient.send(Message(TOPIC, b"3"))
        with servers.standby_stands_still():
            sent = pool.submit(patient.send, Message(TOPIC, b"4"))
            until(servers.commit_waits)
            servers.name_standbys("")
            until(lambda: not servers.commit_waits())
            assert not sent.done(), "it is on one disk"
        assert sent.result(), "it is on two"


def checked(url: str) -> tuple[bool, dict[str, dict[str, str]]]:
    """Return the result of `txmsg db check`: overall success, and each finding by its name."""
    result = CliRunner().invoke(main, ["db", "check", "--storage", url, "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == (0 if told["ok"] else 1)
    return told["ok"], {finding["name"]: finding for finding in told["findings"]}


def test_db_check_reports_primary_standby_and_the_loss_of_either(servers: Pair) -> None:
    primary, standby = servers.primary.url("notify"), servers.standby.url("notify")
    is_well, found = checked(primary)
    assert is_well, found
    assert found["role of the server"]["value"] == "primary"
    assert found["synchronous_standby_names"]["value"] == "*"
    assert found["standby walreceiver"]["value"].startswith("sync, streaming, ")
    is_well, found = checked(standby)
    assert is_well, found
    assert found["role of the server"]["value"] == "hot standby"
    assert found["follows"]["value"].endswith(", streaming")
    assert "bytes behind what is received" in found["replay"]["value"]
    upgrade = CliRunner().invoke(main, ["db", "upgrade", "--storage", standby])
    assert (upgrade.exit_code, "this is a standby: name the primary" in upgrade.stderr) == (1, True), upgrade.stderr
    servers.query("select pg_wal_replay_pause()", of=servers.standby)
    is_well, found = checked(standby)
    assert (is_well, "pg_wal_replay_resume" in found["replay"]["fix"]) == (False, True)

    servers.query("select pg_wal_replay_resume()", of=servers.standby)

    def says(name: str, words: str) -> bool:
        is_well, found = checked(primary)
        return not is_well and words in found.get(name, {"fix": ""})["fix"]

    servers.name_standbys("")
    until(lambda: says("synchronous_standby_names", "needed by topics of durability replicated (1)"))
    servers.name_standbys("nobody")
    until(lambda: says("synchronous standby", "`txmsg topic alter NAME --durability sync`"))
    servers.query("create publication planted")
    servers.query("select pg_create_logical_replication_slot('planted', 'pgoutput')")
    servers.name_standbys("pg_recvlogical")
    with servers.slot_is_read("planted"):
        until(lambda: says("standby pg_recvlogical", "keeps no copy"))
        with pytest.raises(psycopg.DatabaseError) as refused:
            servers.query("select txmsg.set_level(array(select id from txmsg.queue))")
        assert refused.value.sqlstate == "TX006"

    servers.kill_primary()
    until(lambda: not checked(standby)[0])
    assert "promote it if the primary is lost" in checked(standby)[1]["follows"]["fix"]


def test_a_role_that_cannot_see_standbys_is_refused_with_the_grant_to_make(servers: Pair) -> None:
    as_notify = make_url(servers.primary.url("notify")).set(username="notify").render_as_string(hide_password=False)
    with psycopg.connect(servers.primary.url("notify"), autocommit=True) as connection:
        connection.execute("set synchronous_commit = local")
        connection.execute("create role notify login")
        connection.execute("grant create on database notify to notify")
        connection.execute("grant usage on schema txmsg to notify")
        connection.execute("grant select on all tables in schema txmsg to notify")
        call = "select txmsg.set_level(array(select id from txmsg.queue))"
        connection.execute("set role notify")
        with pytest.raises(psycopg.DatabaseError) as refused:
            connection.execute(call)
        assert refused.value.sqlstate == "TX005"
        is_well, found = checked(as_notify)
        assert (is_well, "grant pg_read_all_stats" in found["standbys"]["fix"]) == (False, True), found
        connection.execute("reset role")
        connection.execute("grant pg_read_all_stats to notify")
        assert checked(as_notify)[0]
        connection.execute("set role notify")
        with connection.transaction():
            connection.execute(call)
            assert connection.execute("show synchronous_commit").fetchone() == ("on",)
