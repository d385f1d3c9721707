"""txmsg.contrib.django in a real project: that of docs/how-to/django.md, on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.acceptance.user_project import ROOT
from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.contrib.django_project import Shop
from tests.integration.client_harness import half_count
from tests.mariadb_server import MariaDBServer
from tests.waiting import until
from txmsg.contrib.django.worker import APP

SCENES = Path(__file__).with_name("django_scenes.py")
_LONG = pytest.mark.long
SERVERS_LONG = ("sqlite", pytest.param("postgresql", marks=_LONG), pytest.param("mariadb", marks=_LONG))


@pytest.fixture
def database_of_shop(request: pytest.FixtureRequest) -> Iterator[str | None]:
    kind: str = request.param
    name = f"shop_{abs(hash(request.node.nodeid))}"
    if kind == "sqlite":
        yield None
        return
    server: PostgresServer | MariaDBServer
    server = request.getfixturevalue("postgres" if kind == "postgresql" else "mariadb")
    yield server.create_database(name)
    server.drop_database(name)


@pytest.fixture
def shop(broker: BrokerProcess, database_of_shop: str | None, tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "project", broker.address, database_of_shop)
    shop.manage("migrate")
    return shop


def keys_of(notify_url: str) -> list[int]:
    """Return the keys of committed messages."""
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        return sorted(int(key) for (key,) in connection.execute("select key from txmsg.message"))


def numbers_of(notify_url: str) -> list[int]:
    """Return the order numbers in committed messages."""
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        found = connection.execute("select body from txmsg.message").fetchall()
    return sorted(json.loads(body)["number"] for (body,) in found)


def played(shop: Shop, scene: str) -> list[int]:
    """Run a scene and return the orders that are then in the database."""
    found: list[int] = ast.literal_eval(shop.python(str(SCENES), scene).splitlines()[-1])
    return found


@pytest.mark.parametrize("database_of_shop", SERVERS_LONG, indirect=True)
def test_messages_are_committed_or_rolled_back_with_each_kind_of_transaction(
    shop: Shop, database_of_shop: str | None, notify_url: str
) -> None:
    orders = played(shop, "all_kinds")
    # Of these databases only PostgreSQL aborts a transaction after a failed statement.
    aborts = database_of_shop is not None and database_of_shop.startswith("postgresql")
    assert orders == [1, 2, 3, 5, *([] if aborts else [9]), 10, 11]
    with serving(shop):
        until(lambda: half_count(notify_url) == 0)
    assert keys_of(notify_url) == orders


@pytest.mark.parametrize("database_of_shop", SERVERS_LONG, indirect=True)
def test_messages_sent_in_an_atomic_block_commit_or_roll_back_with_it(
    shop: Shop, database_of_shop: str | None, notify_url: str
) -> None:
    orders = played(shop, "sent_in_blocks")
    aborts = database_of_shop is not None and database_of_shop.startswith("postgresql")
    assert orders == [1, 4, 5, *([] if aborts else [8]), 9, 10, 13]
    with serving(shop):
        until(lambda: half_count(notify_url) == 0)
    assert numbers_of(notify_url) == orders


@pytest.mark.parametrize("database_of_shop", ["sqlite"], indirect=True)
def test_message_sent_by_a_signal_receiver_commits_with_the_save(shop: Shop, notify_url: str) -> None:
    played(shop, "signalled")
    with serving(shop):
        until(lambda: half_count(notify_url) == 0)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        sent = connection.execute("select key, body from txmsg.message").fetchall()
    assert sent == [("1", b'{"mail":1}')]


@pytest.mark.parametrize("database_of_shop", SERVERS_LONG, indirect=True)
@pytest.mark.parametrize("scene", [pytest.param("die_before_the_commit", marks=_LONG), "die_after_the_commit"])
def test_killed_process_leaves_both_row_and_message_or_neither(shop: Shop, scene: str, notify_url: str) -> None:
    shop.python(str(SCENES), scene, ends_with=9)
    assert half_count(notify_url) == 1
    with serving(shop):
        until(lambda: half_count(notify_url) == 0)
    assert keys_of(notify_url) == ([22] if scene == "die_after_the_commit" else [])


@_LONG  # tests/integration/transactional/test_outbox.py has each step
@pytest.mark.parametrize("database_of_shop", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_messages_are_stored_while_no_broker_answers_and_relayed_later(
    shop: Shop, broker: BrokerProcess, notify_url: str
) -> None:
    broker.kill()
    assert played(shop, "while_no_broker_answers") == [32, 35, 36]
    broker.start()
    relayed = shop.manage("txmsg_outbox", "--relay")
    assert relayed.splitlines() == ["transactions relayed: 5", "nothing waits"]
    until(lambda: half_count(notify_url) == 0)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        bodies = connection.execute(
            "select m.body from txmsg.message m join txmsg.queue q on q.id = m.queue "
            "join txmsg.topic t on t.id = q.topic_id order by t.name, m.queue_offset"
        ).fetchall()
    assert [json.loads(body)["number"] for (body,) in bodies] == [31, 32, 35, 36, 31]


class serving:  # noqa: N801 - it reads as what it does
    """A process of the project that answers check-backs, as every process with a started producer does."""

    def __init__(self, shop: Shop) -> None:
        code = "import django; django.setup()\nfrom txmsg.contrib.django import producer\nproducer().start()\ninput()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=shop.directory, env=shop.environment, stdin=subprocess.PIPE
        )

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._process.communicate(b"\n", timeout=60)
        assert self._process.returncode == 0


@_LONG
@pytest.mark.parametrize("database_of_shop", ["sqlite"], indirect=True)
def test_worker_handles_messages_until_it_is_stopped(shop: Shop, notify_url: str) -> None:
    assert played(shop, "all_kinds")
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "txmsg_worker", "mailer"],
        cwd=shop.directory,
        env=shop.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    mails = "from shop.models import Mail; print(sorted(Mail.objects.values_list('order_number', flat=True)))"
    wanted = "[1, 2, 3, 5, 9, 10, 11]"
    until(lambda: wanted in shop.manage("shell", "--no-imports", "-c", mails))
    worker.send_signal(signal.SIGTERM)
    printed, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, printed
    assert printed.splitlines()[:2] == ["group mailer reads order.placed", "receiving; end with Ctrl-C"]


@_LONG
@pytest.mark.parametrize("database_of_shop", ["sqlite"], indirect=True)
def test_supervised_processes_run_the_handlers(shop: Shop) -> None:
    assert played(shop, "all_kinds")
    manage = str(shop.directory / "manage.py")
    worker = subprocess.Popen(
        [sys.executable, manage, "txmsg_worker", "mailer", "--processes", "2", "--http-listen", "127.0.0.1:0"],
        cwd="/",  # as a unit of systemd has it
        env={**shop.environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == f"2 processes run {APP}; Ctrl-C ends them\n"
    assert len(psutil.Process(worker.pid).children()) == 2
    mails = "from shop.models import Mail; print(sorted(Mail.objects.values_list('order_number', flat=True)))"
    until(lambda: "[1, 2, 3, 5, 9, 10, 11]" in shop.manage("shell", "--no-imports", "-c", mails))
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=60)
    assert worker.returncode == 0, said


@pytest.mark.parametrize("database_of_shop", ["sqlite"], indirect=True)
def test_handlers_accept_models_lists_and_fields(shop: Shop) -> None:
    code = """
import threading
import django; django.setup()
from typing import TypedDict
from django.db import connection
from django.test import override_settings
from txmsg import Message, MisuseError, Topic, Transaction
from txmsg.contrib.django import idempotent, producer, subscribe
from txmsg.contrib.django.subscriptions import application
from txmsg.message import ReceivedMessage
from txmsg.testing import Memory

class Order(TypedDict):
    number: int

orders = Topic("orders", Order, key="number")
seen = []

@subscribe(orders, group="typed", concurrency=2)
def by_model(message: ReceivedMessage[Order]) -> None:
    seen.append(("model", message.payload))

closed = []

@subscribe("orders", group="lists", batch=10)
def by_list(messages: list[ReceivedMessage]) -> None:
    connection.ensure_connection()
    connection.close_if_unusable_or_obsolete = lambda: closed.append(threading.current_thread())
    seen.append(("list", len(messages)))

@subscribe("orders", group="once")
@idempotent()
def by_field(number: int) -> None:
    seen.append(("field", number))

topics = []

@subscribe("orders", "refund.*", group="several")
def by_pattern(number: int, message: ReceivedMessage) -> None:
    topics.append((message.topic, number))

try:
    @subscribe("orders", group="other")
    async def other(number: int) -> None: pass
except MisuseError as exc:
    print(exc)
def asks(number: int, tx: Transaction) -> None: pass
def returns(number: int) -> Message: pass
for handler in (asks, returns):
    try:
        subscribe("orders", group="other")(handler)
    except MisuseError as exc:
        print(str(exc).partition(", for which")[0])
with override_settings(TXMSG={"GROUP": "shop", "BROKERS": "memory:"}):
    memory = Memory()
    for number in (1, 2):
        producer().send(orders.message({"number": number}))
    producer().send(Message("refund.asked", b'{"number": 3}'))
    app = application()
    print(sorted((each.group, each.concurrency) for each in app.subscriptions))
    print(memory.deliver(app), sorted(seen, key=str), threading.current_thread() in closed)
    print(topics)
    producer().close()
"""
    assert shop.manage("migrate")
    assert shop.python("-c", code).splitlines() == [
        "the handler of topic 'orders' is async def, in which transactions of Django do not work: make it def",
        "asks() asks for a session or tx",
        "returns() returns messages to send",
        "[('lists', 4), ('mailer', 4), ('once', 4), ('payment', 4), ('several', 4), ('typed', 2)]",
        "9 [('field', 1), ('field', 2), ('list', 2), ('model', {'number': 1}), ('model', {'number': 2})] True",
        "[('orders', 1), ('orders', 2), ('refund.asked', 3)]",
    ]


@_LONG
@pytest.mark.parametrize("database_of_shop", ["sqlite"], indirect=True)
def test_misuse_is_reported_with_its_cause(shop: Shop) -> None:
    said = shop.manage("txmsg_worker", "--processes", "two", ends_with=1)
    assert "'two' is not a valid integer range" in said
    shop.manage("migrate", "txmsg", "zero")
    assert "absent are created by `manage.py migrate txmsg --database default`" in shop.manage(
        "txmsg_worker", ends_with=1
    )
    shop.manage("migrate", "txmsg")
    assert "no handler is of group 'mailr': there are mailer" in shop.manage("txmsg_worker", "mailr", ends_with=1)
    assert shop.manage("makemigrations", "--check") == "No changes detected\n"
    assert "at least 600 s are needed" in shop.manage("txmsg_purge", "--older-than-days", "0", ends_with=1)
    assert "deleted: 0 rows of the fence, 0 of the inbox" in shop.manage("txmsg_purge")
    code = """
import django; django.setup()
from django.test import override_settings
from django.core.exceptions import ImproperlyConfigured
from txmsg import MisuseError, StorageError
from txmsg.contrib.django import transactional_message, producer, idempotent
from txmsg.contrib.django.configuration import configuration

for wrong in (None, 3, {}, {"GROUP": "a", "BROKER": "x"}, {"GROUP": "no blanks"}):
    with override_settings(TXMSG=wrong):
        try:
            configuration()
        except ImproperlyConfigured as exc:
            print(exc)

for wrong in (lambda: transactional_message(topic="t")(3), lambda: idempotent(print)):
    try:
        wrong()
    except MisuseError as exc:
        print(exc)

try:
    @transactional_message(topic="t")
    async def place(): pass
except MisuseError as exc:
    print(exc)

from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("drop table txmsg_fence")
from shop.services import place
try:
    place(number=1)
except StorageError as exc:
    print(exc)
from django.db import transaction
from shop.models import Order
from txmsg.contrib.django import send
with transaction.atomic():
    Order.objects.create(number=2)
    try:
        send("order.placed", {"number": 2})
    except StorageError as exc:
        print(exc)  # caught: yet the block must not commit without the row
print(Order.objects.count())
"""
    lines = shop.python("-c", code).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "the setting TXMSG is missing",
        "the setting TXMSG is 3",
        "TXMSG needs a GROUP, the name of this service among producers",
        "TXMSG has no 'BROKER'",
        'TXMSG["GROUP"]',
        "3 is not a function",
        "@idempotent is used without parentheses",
        "place is async def, in which transactions of Django do not work",
        "table txmsg_fence is absent from Django's database 'default'",
        "table txmsg_fence is absent from Django's database 'default'",
        "0",
    ]


@pytest.mark.parametrize("database_of_shop", SERVERS_LONG, indirect=True)
def test_documented_application_tests_pass(
    postgres: PostgresServer, database_of_shop: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMSG_STORAGE", postgres.url("postgres"))
    shop = Shop(tmp_path / "project", "localhost:1", database_of_shop)
    printed = shop.manage("test")
    assert "Ran 5 tests" in printed
    assert "OK" in printed.splitlines()
