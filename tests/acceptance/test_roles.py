"""Each component works with no more rules than docs/security.md gives it, across starts, lost servers and restarts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest

from tests.agent.test_agent import AgentProcess
from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import json_of, said
from tests.metaq.consumers import Seen
from tests.metaq.copies import CopyProcess, until_copied
from tests.metaq.logs import batch
from tests.metaq.servers import MetaQProcess
from tests.mirror.checks import require_equal
from tests.mirror.load import Load
from tests.mirror.rows import make_queues, store, written
from tests.mirror.tailer_process import TailerProcess
from tests.rocketmq.test_access import _GATEWAY as GATEWAY
from tests.waiting import until
from txmsg.client import Consumer, Producer
from txmsg.client.app import Txmsg
from txmsg.client.fence import held_by
from txmsg.consumer.failures import Retry
from txmsg.errors import PermissionDenied, Unauthenticated
from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.producer import LogProducer
from txmsg.wire.body_keys import BodyKeys

_PAGE = Path(__file__).parents[2] / "docs" / "security.md"
_RULE = re.compile(r"`((?:send|receive|check|describe|read|administer) (?:cluster|(?:topic|group):[\w.*]+))`")
_OF_GATEWAY = "RocketMQ gateway with `--access-key-file`"
_OF_LOG = "MetaQ server with `--access-from`"
BY_PART = (
    "producer, also of a log",
    "transactional producer",
    "consumer",
    "reader of a log, Spark's source",
    "consumer of a log",
    "reader of bodies of an erasable topic in a log",
    "tailer",
    "agent",
    _OF_LOG,
    "copy of a log",
    "console",
    "purge of fence rows",
)


def rules_of_page() -> dict[str, Sequence[str]]:
    """Return the rules that the table gives each component."""
    table = _PAGE.read_text().partition("| Component | Rules |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in table.splitlines()[2:]]
    return {name: _RULE.findall(text) for name, text in rows}


RULES = rules_of_page()


def test_every_component_of_the_page_has_a_scenario() -> None:
    assert RULES.keys() == {*BY_PART, _OF_GATEWAY}


def test_gateway_tests_use_the_rules_of_the_page() -> None:
    page = (_PAGE.parent / "how-to" / "rocketmq.md").read_text()
    rules = re.findall(r"acl allow gateway (\w+) '?([\w:*]+)'?\n", page)
    assert set(rules) == set(GATEWAY)
    assert RULES[_OF_GATEWAY] == ["read cluster"]


class Place:
    """A broker and a log server with users and rules. Commands and clients of a test act as the user in TXMSG_TOKEN."""

    def __init__(self, storage: str, directory: Path, environment: pytest.MonkeyPatch) -> None:
        self.storage, self.directory, self.environment = storage, directory, environment
        self.stack = ExitStack()
        self._tokens: dict[str, str] = {}
        said("user", "create", "ops", "--role", "admin", "--out", str(directory / "ops"), "--storage", storage)
        self.broker = self.stack.enter_context(BrokerProcess(storage, "--auth", log=directory / "broker.log"))
        self._token_of_log = self.become(_OF_LOG)
        access = ("--access-from", self.broker.address)
        self.log = MetaQProcess(directory / "log", *access, log=directory / "metaq.log")
        self.stack.enter_context(self.log)

    def become(self, part: str, *, group: str = "g") -> str:
        """Act as a new user of this component, with its rules on topic t and this group, and return its token."""
        if part in self._tokens:
            self.environment.setenv("TXMSG_TOKEN", self._tokens[part])
            return self._tokens[part]
        as_ops = ("--broker", self.broker.address)
        self.environment.setenv("TXMSG_TOKEN", (self.directory / "ops").read_text().strip())
        name = re.sub(r"\W+", "-", part).strip("-").lower()
        token = json_of("user", "create", name, *as_ops)["token"]
        for rule in RULES[part]:
            said("acl", "allow", name, *rule.replace("TOPIC", "t").replace("GROUP", group).split(" "), *as_ops)
        if part.startswith("reader of bodies"):  # it also reads the log
            said("acl", "allow", name, "receive", "topic:t", *as_ops)
        if part != _OF_LOG:
            self._await_log(json_of("user", "create", f"{name}-has-come", *as_ops)["token"])
        self.environment.setenv("TXMSG_TOKEN", token)
        self._tokens[part] = token
        return str(token)

    def _await_log(self, token: str) -> None:
        """Return when the log server knows this user, and so all earlier rules."""
        self.environment.setenv("TXMSG_TOKEN", token)

        def is_known() -> bool:
            with suppress(Unauthenticated), open_log(self.log.address) as log:
                return bool(log.identity())
            return False

        until(is_known)

    def restart_log(self) -> None:
        """Kill the log server and restart it as its own user."""
        self.log.end(signal.SIGKILL)
        self.start_log()

    def start_log(self) -> None:
        token = os.environ["TXMSG_TOKEN"]
        self.environment.setenv("TXMSG_TOKEN", self._token_of_log)
        self.log.start()
        self.environment.setenv("TXMSG_TOKEN", token)

    def ops(self) -> None:
        self.environment.setenv("TXMSG_TOKEN", (self.directory / "ops").read_text().strip())


@pytest.fixture
def place(notify_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.delenv("TXMSG_TOKEN_FILE", raising=False)
    made = Place(notify_url, tmp_path, monkeypatch)
    with made.stack:
        made.ops()
        until(lambda: json_of("user", "list", "--broker", made.broker.address))
        yield made


def restarted(server: BrokerProcess) -> None:
    server.end(signal.SIGKILL)
    server.start()


class Committed:
    """A check listener that answers COMMIT."""

    def __init__(self) -> None:
        self.checked: list[ReceivedMessage] = []

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.checked.append(message)
        return TransactionState.COMMIT

    def await_check(self) -> None:
        until(lambda: self.checked)


def test_brokers_producers_and_consumers_work_with_the_rules_of_the_page(place: Place) -> None:
    address = place.broker.address
    said("topic", "create", "t", "--queues", "1", "--broker", address)
    got: list[ReceivedMessage] = []
    place.become("consumer")
    consumer = Consumer(address, group="g")
    consumer.subscribe("t")(got.append)
    with consumer:
        place.become("producer, also of a log")
        with Producer(address, group="plain") as producer:
            producer.send(Message("t", b"1"))
            restarted(place.broker)
            producer.send(Message("t", b"2"))
        place.become("transactional producer", group="shop")
        for body in (b"3", b"4"):  # once more as after a restart of the service
            listener = Committed()
            with Producer(address, group="shop", check_listener=listener) as producer:
                producer.end(producer.half([Message("t", body)]), TransactionState.COMMIT)
                producer.end(producer.half([Message("t", body + b"?")]), TransactionState.UNKNOWN)
                listener.await_check()
        until(lambda: {message.body for message in got} >= {b"1", b"2", b"3", b"4", b"3?", b"4?"})


def await_rights(log: LogAccess) -> None:
    """Return when the server knows the rules of the user, which brokers send it with a short delay."""

    def are_known() -> bool:
        try:
            log.topics()
        except PermissionDenied:
            return False
        return True

    until(are_known)


def test_log_producers_readers_and_consumers_work_with_the_rules_of_the_page(place: Place) -> None:
    address = place.log.address
    place.become("producer, also of a log")
    with open_log(address) as log:
        producer = LogProducer(log, queues=1)
        producer.send(Message("t", b"1"))
        place.restart_log()
        producer.send(Message("t", b"fails"))
    place.become("reader of a log, Spark's source")
    for _ in range(2):
        with open_log(address) as log:
            queue = LogQueue("t", 0)
            await_rights(log)
            assert log.topics() == {"t": [0]}
            assert log.ranges([queue])[queue].end == 2
            assert log.fetch({queue: 0})
            place.restart_log()
            assert log.fetch({queue: 0})
    place.become("consumer of a log")
    seen = Seen(lambda message: message.body == b"fails")
    for _ in range(2):
        app = Txmsg(log=address, group="g")
        app.subscribe("t", source="log", retry=Retry(retries_max=1, delays_s=[0.1]))(seen)
        with app:
            until(lambda: [message.body for message in seen.messages].count(b"fails") == 2)
            place.restart_log()
    place.ops()
    [letter] = json_of("dead-letter", "list", "--group", "g", "--log", address)["dead_letters"]
    assert letter["group"] == "g"


def test_a_log_an_agent_and_a_copy_work_with_the_rules_of_the_page(place: Place) -> None:
    place.become("agent")
    agent = AgentProcess(place.directory, place.log.address, "t")
    place.stack.callback(agent.kill)
    agent.start()
    agent.write("1")
    place.restart_log()
    agent.write("2")
    agent.stop()
    agent.write("3")
    agent.start()
    place.ops()

    def lines() -> int:
        with open_log(place.log.address) as log:
            queue = LogQueue("t", 0)
            return log.ranges([queue])[queue].end if log.topics() else 0

    until(lambda: lines() == 3)
    said("agent", "set", str(agent.file), "lines_per_s=1000")
    until(lambda: "1000" in said("agent", "status", str(agent.file), "--json"))
    agent.end(signal.SIGTERM)
    place.become("copy of a log")
    copy_dir = place.directory / "copy"
    copy = CopyProcess(place.log.address, copy_dir, log=place.directory / "copy.log")
    with copy:
        until_copied(place.log.data_dir, copy_dir)
        place.restart_log()
        restarted(copy)
        place.become("producer, also of a log")
        with open_log(place.log.address) as log:
            log.append([batch("t", 0, 3, 1)])
        until_copied(place.log.data_dir, copy_dir)


def test_a_tailer_works_with_the_rules_of_the_page(place: Place) -> None:
    url = place.storage
    make_queues(url, "t", 2)
    load = Load(url, "t", 2, seed=7)
    said_by = iter(place.directory / f"tailer-{number}.said" for number in range(9))

    def new_tailer() -> TailerProcess:
        return place.stack.enter_context(TailerProcess(url, place.log.address, said=next(said_by)))

    place.become("tailer")
    tailer, standby = new_tailer(), new_tailer()
    tailer.start()
    load.write(20)
    standby.launch()
    standby.await_state("standing by")
    place.restart_log()
    load.write(20)
    require_equal(url, place.log.data_dir, load.count)
    tailer.stop()
    standby.await_state("tailing")
    load.write(20)
    require_equal(url, place.log.data_dir, load.count)
    standby.stop()
    end = load.ends[1]
    with psycopg.connect(url, connect_timeout=10) as connection:  # as after a backup was restored
        connection.execute(
            "delete from txmsg.message where queue_offset >= %s and queue = "
            "(select q.id from txmsg.queue q where q.number = 1)",
            (end - 3,),
        )
    store(url, [written("t", 1, offset)._replace(body=b"another") for offset in range(end - 3, end)])
    place.log.stop()
    said("tailer", "fork", "--storage", url, "--metaq", str(place.log.data_dir), "--yes")
    place.start_log()
    tailer.start()
    load.write(20)
    require_equal(url, place.log.data_dir, load.count)
    tailer.stop()
    assert "may not" not in "".join(each.said for each in (tailer, standby))
    said("tailer", "drop", "--storage", url, "--yes")


def test_a_reader_of_erasable_bodies_in_a_log_works_with_the_rules_of_the_page(place: Place) -> None:
    said("topic", "create", "t", "--queues", "1", "--erasable", "30d", "--broker", place.broker.address)
    with Producer(place.broker.address, group="g") as producer:
        producer.send(Message("t", b"secret"))
    tailer = TailerProcess(place.storage, place.log.address, said=place.directory / "tailer.said")
    with tailer:
        tailer.start()
        require_equal(place.storage, place.log.data_dir, 1)
        tailer.stop()
    place.become("reader of bodies of an erasable topic in a log")
    for _ in range(2):
        keys = BodyKeys(place.broker.address)
        with open_log(place.log.address) as log:
            [fetched] = log.fetch({LogQueue("t", 0): 0})
            [message] = keys.decrypt_all([message for each in fetched.batches for message in each.messages()])
            assert message.body == b"secret"
        restarted(place.broker)
    place.ops()
    said("tailer", "drop", "--storage", place.storage, "--yes")


def test_a_console_and_a_purge_work_with_the_rules_of_the_page(place: Place) -> None:
    address = place.broker.address
    place.become("transactional producer", group="shop")
    with Producer(address, group="shop") as producer:
        half = producer.half([Message("t", b"1")])
        for _ in range(2):
            place.become("console")
            for words in (
                ("cluster", "show"),
                ("cluster", "clients"),
                ("cluster", "figures"),
                ("topic", "show", "t"),
                ("group", "list"),
                ("half", "list"),
                ("dead-letter", "list"),
                ("alert", "list"),
                ("config", "history"),
                ("user", "list"),
                ("audit", "list"),
            ):
                said(*words, "--broker", address)
            place.become("purge of fence rows", group="shop")
            assert set(held_by(address)([half.transaction_id])) == {half.transaction_id}
            restarted(place.broker)
        producer.end(half, TransactionState.COMMIT)
