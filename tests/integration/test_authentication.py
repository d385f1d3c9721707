"""Brokers that require authentication: valid credentials, creation of users, and the delay of a revocation."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import queue
import subprocess
import sys
import threading
import traceback
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import psycopg
import pytest
from click.testing import CliRunner

from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.console.answering import ACTION_PATHS, VIEW_PATHS, address
from tests.console.conftest import csrf_in
from tests.console.served import asked_console
from tests.integration.cli_harness import json_of, said
from tests.integration.client_harness import WAIT_S
from tests.ports import own_port
from tests.waiting import until, until_told
from txmsg import AsyncProducer, Consumer, Message, Producer
from txmsg.administration.access import AccessService
from txmsg.administration.ask import Nothing
from txmsg.client.settings import Settings
from txmsg.errors import MisuseError, PermissionDenied, TxmsgError, Unauthenticated
from txmsg.message import ReceivedMessage
from txmsg.metaq.location import open_log
from txmsg.ops.cli.main import main
from txmsg.ops.cli.user import make_first_user
from txmsg.ops.console.user_databases import UserDatabases
from txmsg.wire.access.keys import AccessKey, KeyFile
from txmsg.wire.access.tokens import new_token
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.credential import client_token
from txmsg.wire.users import AccessWatch, WatchAccess

_numbers = itertools.count()


class Secured:
    """Two brokers of one database that require authentication, with the token of an administrator."""

    def __init__(self, storage: str, first: BrokerProcess, second: BrokerProcess, admin: Path, metrics: str) -> None:
        self.storage, self.first, self.second, self.admin, self.metrics = storage, first, second, admin, metrics

    def user(self, command: str, *args: str) -> Any:
        """Return the output of `txmsg user` as the administrator, through the first broker."""
        return json_of("user", command, *args, "--broker", self.first.address, "--token-file", str(self.admin))

    def new(self, *options: str) -> tuple[str, str]:
        """Create another user with all rights, known to both brokers, and return its token."""
        name = f"user{next(_numbers)}"
        token = self.user("create", name, "--role", "admin", *options)["token"]
        self.settle()
        return name, token

    def settle(self) -> None:
        """Return when the second broker knows what the first does. Not by logins: refused ones are delayed."""
        versions = [self._watch(broker.address) for broker in (self.first, self.second)]
        while versions[0] != versions[1]:
            versions[1] = self._watch(self.second.address, versions[1])

    def _watch(self, address: str, version: int = 0) -> int:
        request = WatchAccess(version=version, wait_ms=10_000)
        with BlockingChannel(address, token=self.admin) as channel:
            return channel.call(AccessWatch.watch, request, timeout_s=WAIT_S).version


@pytest.fixture(scope="module")
def secured(
    postgres: PostgresServer, notify_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    directory, name = tmp_path_factory.mktemp("secured"), f"secured_{os.getpid()}"
    metrics = f"127.0.0.1:{own_port()}"
    storage, admin = postgres.create_database(name, template=notify_template), directory / "admin.token"
    said("user", "create", "ops", "--role", "admin", "--storage", storage, "--out", str(admin))
    with (
        BrokerProcess(
            storage, "--auth", "--log-level", "debug", "--http-listen", metrics, log=directory / "first.log"
        ) as first,
        BrokerProcess(storage, "--auth", "--log-format", "json", log=directory / "second.log") as second,
    ):
        yield Secured(storage, first, second, admin, metrics)
        assert "Traceback" not in first.log.read_text() + second.log.read_text()
    postgres.drop_database(name)


@pytest.fixture(autouse=True)
def no_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the token variable, which `--token-file` sets for the process."""
    monkeypatch.setenv("TXMSG_TOKEN_FILE", "")


def who(address: str, token: str) -> str:
    """Return the user that a broker sees for this token."""
    with BlockingChannel(address, token=token) as channel:
        return channel.call(AccessService.who_am_i, Nothing(), timeout_s=WAIT_S).name


def is_refused(address: str, token: str) -> bool:
    try:
        who(address, token)
    except Unauthenticated:
        return True
    return False


def test_the_first_user_is_created_in_the_database_and_its_file_is_private(secured: Secured) -> None:
    assert secured.admin.stat().st_mode & 0o777 == 0o600
    for broker in (secured.first, secured.second):
        assert who(broker.address, secured.admin.read_text().strip()) == "ops"


def test_only_valid_tokens_are_accepted(secured: Secured) -> None:
    name, right = secured.new()
    for broker in (secured.first, secured.second):
        assert who(broker.address, right) == name
    wrong = right[:-1] + ("a" if right[-1] != "a" else "b")
    assert is_refused(secured.first.address, "")
    assert is_refused(secured.second.address, wrong)


def test_a_token_of_another_database_is_refused(secured: Secured, notify_url: str) -> None:
    made = json_of("user", "create", "stranger", "--role", "admin", "--storage", notify_url)
    assert is_refused(secured.first.address, made["token"])


def test_user_commands_use_the_database_of_the_environment(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMSG_STORAGE", secured.storage)
    said("user", "create", "by-environment", "--role", "admin")
    assert "by-environment" in {each["name"] for each in json_of("user", "list")["users"]}
    nobody = f"127.0.0.1:{own_port()}"
    assert f"no answer from a broker at {nobody}" in said("user", "list", "--broker", nobody, status=1)
    both = said("user", "list", "--broker", nobody, "--storage", secured.storage, status=2)
    assert "--broker asks a broker, --storage works without one: give one of them" in both


def test_an_expired_token_is_refused_and_ends_its_connections(secured: Secured) -> None:
    name, token = secured.new("--expires", "2s")
    with BlockingChannel(secured.first.address, token=token) as channel:
        assert channel.call(AccessService.who_am_i, Nothing(), timeout_s=WAIT_S).name == name
        until(lambda: _fails(channel, Unauthenticated))


def _fails(channel: BlockingChannel, error: type[TxmsgError]) -> bool:
    try:
        channel.call(AccessService.who_am_i, Nothing(), timeout_s=WAIT_S)
    except error:
        return True
    except TxmsgError:
        return False
    return False


def test_a_token_revoked_at_one_broker_ends_connections_of_another(secured: Secured) -> None:
    name, token = secured.new()
    with BlockingChannel(secured.second.address, token=token) as channel:
        assert channel.call(AccessService.who_am_i, Nothing(), timeout_s=WAIT_S).name == name
        secured.user("revoke", name)
        assert is_refused(secured.first.address, token)  # at once: it answers when it refuses
        until(lambda: _fails(channel, Unauthenticated))
    assert secured.user("show", name)["tokens"] == []


def test_two_tokens_are_valid_at_a_time_and_a_third_replaces_the_oldest(secured: Secured) -> None:
    name, first = secured.new()
    second = secured.user("rotate", name)["token"]
    address = secured.first.address
    assert (is_refused(address, first), is_refused(address, second)) == (False, False)
    third = secured.user("rotate", name)["token"]
    assert [is_refused(address, token) for token in (first, second, third)] == [True, False, False]
    ids = [token["id"] for token in secured.user("show", name)["tokens"]]
    assert ids == [third.split("_")[1], second.split("_")[1]]
    shown = said("user", "show", name, "--broker", address, "--token-file", str(secured.admin))
    assert ["Token", "Created", "at"] in [line.split() for line in shown.splitlines()]
    secured.user("revoke", name, "--token", ids[1])
    assert [is_refused(address, token) for token in (second, third)] == [True, False]


def test_a_deleted_user_is_refused(secured: Secured) -> None:
    name, token = secured.new()
    secured.user("delete", name, "--yes")
    assert is_refused(secured.first.address, token)
    assert name not in [user["name"] for user in secured.user("list")["users"]]


def test_sync_and_async_clients_send_and_receive_with_tokens(secured: Secured, tmp_path: Path) -> None:
    _, token = secured.new()
    file = tmp_path / "token"
    file.write_text(token)
    brokers = f"{secured.first.address},{secured.second.address}"
    received: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(brokers, group="g", token=file)
    consumer.subscribe("t")(received.put)
    with consumer:
        with Producer(brokers, group="p", token=token) as producer:
            producer.send(Message("t", b"of a thread"))

        async def send() -> None:
            async with AsyncProducer(brokers, group="p", token=lambda: token) as producer:
                await producer.send(Message("t", b"of a loop"))

        asyncio.run(send())
        bodies = {received.get(timeout=WAIT_S).body for _ in range(2)}
    assert bodies == {b"of a thread", b"of a loop"}
    with Settings(brokers, token=token) as settings:
        assert settings.get("app.x") is None


def test_an_unauthenticated_producer_fails_at_start(secured: Secured) -> None:
    with pytest.raises(Unauthenticated), Producer(secured.second.address, group="p", token=new_token().text):
        pass


def test_an_unauthenticated_consumer_fails_at_start_and_starts_with_a_valid_token(secured: Secured) -> None:
    tokens = [new_token().text]
    received: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(secured.second.address, group="late", token=lambda: tokens[-1])
    consumer.subscribe("late")(received.put)
    with pytest.raises(Unauthenticated):
        consumer.start()
    tokens.append(secured.new()[1])
    with consumer, Producer(secured.first.address, group="p", token=tokens[-1]) as producer:
        producer.send(Message("late", b"x"))
        assert received.get(timeout=WAIT_S).body == b"x"


def test_a_token_is_rotated_during_a_run_without_errors(secured: Secured, tmp_path: Path) -> None:
    name, token = secured.new()
    file = tmp_path / "token"
    file.write_text(token)
    brokers = f"{secured.first.address},{secured.second.address}"
    sent, failed, stop = [0], [], threading.Event()

    def send(producer: Producer) -> None:
        while not stop.is_set():
            try:
                producer.send(Message("rotated", str(sent[0]).encode()))
            except TxmsgError as exc:
                failed.append(exc)
                return
            sent[0] += 1

    with Producer(brokers, group="p", token=file) as producer:
        sending = threading.Thread(target=send, args=(producer,))
        sending.start()
        until(lambda: sent[0] > 10)
        new = secured.user("rotate", name, "--out", str(file))
        assert new["token"] is None
        secured.user("revoke", name, "--token", token.split("_")[1])
        after = sent[0]
        until(lambda: sent[0] > after + 50 or failed)
        secured.settle()
        stop.set()
        sending.join(WAIT_S)
    assert not failed


def test_a_user_without_rules_may_only_call_who_am_i(secured: Secured) -> None:
    made = secured.user("create", "nobody-yet")
    assert who(secured.first.address, made["token"]) == "nobody-yet"
    with (
        Producer(secured.first.address, group="p", token=made["token"]) as producer,
        pytest.raises(PermissionDenied, match="txmsg acl allow nobody-yet send topic:t"),
    ):
        producer.send(Message("t", b""))


def test_commands_read_a_token_file_and_report_a_missing_token(secured: Secured) -> None:
    where = ("--broker", secured.first.address)
    assert json_of("topic", "list", *where, "--token-file", str(secured.admin))
    os.environ["TXMSG_TOKEN_FILE"] = ""
    result = CliRunner().invoke(main, ["topic", "list", *where])
    assert result.exit_code == 1
    assert "requires authentication" in result.stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("create", "a b"), "is not a valid name"),
        (("create", "anyone"), "reserved name"),
        (("create", "ada", "--out", "/dev/stdout"), "not a regular file"),
        (("create", "x", "--role", "a b"), "is not a valid name"),
        (("create", "ops"), "exists already"),
        (("alter", "ops", *(word for n in range(20) for word in ("--role", f"r{n}"))), "21 roles: at most 20"),
        (("show", "missing"), "there is no user missing"),
        (("rotate", "missing"), "there is no user missing"),
        (("revoke", "ops", "--token", "none"), "no token with this id"),
        (("delete", "missing", "--yes"), "there is no user missing"),
    ],
)
def test_an_invalid_user_command_is_refused_with_the_reason(secured: Secured, args: tuple[str, ...], told: str) -> None:
    where = ("--broker", secured.first.address, "--token-file", str(secured.admin))
    assert told in said("user", *args, *where, status=1)


def test_a_token_is_not_sent_to_another_machine_without_tls() -> None:
    with pytest.raises(MisuseError, match="without TLS, where others could read it"):
        who("192.0.2.1:7700", new_token().text)


def test_a_forked_child_connects_with_the_token_of_its_parent(secured: Secured) -> None:
    _, token = secured.new()
    program = (
        "import os, sys\n"
        "from txmsg import Message, Producer\n"
        "producer = Producer(sys.argv[1], group='p')\n"
        "producer.send(Message('forked', b''))\n"
        "child = os.fork()\n"
        "producer.send(Message('forked', b''))\n"
        "producer.close()\n"
        "if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    environment = {**os.environ, "TXMSG_TOKEN": token}
    command = [sys.executable, "-c", program, secured.first.address]
    subprocess.run(command, env=environment, check=True, timeout=WAIT_S * 4)


def test_the_first_user_of_the_embedded_database_is_created_once(notify_url: str, tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    make_first_user(notify_url, file)
    token = file.read_text()
    make_first_user(notify_url, file)
    assert file.read_text() == token
    file.unlink()
    file.with_name(".admin.token.new").touch()  # as if the broker had been stopped before it could write the token
    make_first_user(notify_url, file)
    assert file.read_text().startswith("txmsg_")
    [user] = json_of("user", "list", "--storage", notify_url)["users"]
    assert (user["name"], user["roles"]) == ("admin", ["admin"])


def test_secrets_do_not_appear_in_database_logs_or_output(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="txmsg")
    _, token = secured.new()
    wrong, file = new_token().text, tmp_path / "token"
    file.write_text(token)
    secrets = [text.split("_")[2] for text in (token, wrong, secured.admin.read_text().strip())]
    brokers = [secured.first.address, secured.second.address]
    said_anywhere: dict[str, str] = {}

    def note(where: str, what: object) -> None:
        said_anywhere[where] = str(what)

    producer, consumer = Producer(brokers, group="p", token=token), Consumer(brokers, group="secrets", token=file)
    consumer.subscribe("secrets")(lambda message: None)
    settings, log = Settings(brokers, token=lambda: token), open_log("127.0.0.1:1", token=token, timeout_s=0.2)
    with producer, consumer, settings:
        producer.send(Message("secrets", b"x"))
        for name, client in {"producer": producer, "consumer": consumer, "settings": settings, "log": log}.items():
            note(f"repr of the {name}", [repr(client), *map(repr, vars(client).values())])
            core = getattr(client, "_core", client)
            note(f"parts of the {name}", [repr(part) for part in vars(core).values()])
    for broker in brokers:
        with (
            pytest.raises(Unauthenticated) as refused,
            Producer(broker, group="p", token=lambda: wrong, timeout_s=WAIT_S) as producer,
        ):
            producer.send(Message("secrets", b"x"))
        note(f"traceback of {broker}", "".join(traceback.format_exception(refused.value)))
    with pytest.raises(MisuseError) as caught:
        Producer(brokers, group="p", token=f"Bearer {wrong}")
    note("an error of the wrong form", caught.getrepr(style="long"))
    with pytest.raises(MisuseError) as caught:
        who("192.0.2.1:7700", wrong)
    note("an error of a token without TLS", caught.value)
    where = ("--broker", brokers[0], "--token-file", str(secured.admin))
    for command in (
        ("user", "list"),
        ("user", "show", "ops"),
        ("config", "show"),
        ("audit", "list"),
        ("user", "whoami"),
    ):
        note(" ".join(command), said(*command, *where) + said(*command, *where, "--json"))
    pages = asyncio.run(pages_of_the_console(brokers, secured.admin.read_text().strip(), wrong))
    assert sum("<small>admin</small>" in text for text in pages.values()) > 10, "pages are those of a login"
    said_anywhere |= pages
    with urllib.request.urlopen(f"http://{secured.metrics}/metrics", timeout=WAIT_S) as reply:
        note("/metrics", reply.read().decode())
    with psycopg.connect(secured.storage, connect_timeout=10) as connection:
        for table in ("access_user", "access_token", "audit"):
            note(f"table {table}", connection.execute(f"select t::text from txmsg.{table} t").fetchall())
    note(
        "the command lines of processes",
        "\n".join(" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])),
    )
    note("the log in text", secured.first.log.read_text())
    note("the log in JSON", secured.second.log.read_text())
    unreadable = client_token(file)
    file.write_text(f"Bearer {token}")
    assert unreadable.read() == token
    note("the log of clients", caplog.text)
    assert all(said_anywhere.values())
    assert [(place, secret) for place, text in said_anywhere.items() for secret in secrets if secret in text] == []
    assert token.split("_")[1] in said_anywhere["table access_token"], "the search finds what is there"


async def pages_of_the_console(brokers: list[str], token: str, wrong: str) -> dict[str, str]:
    """Return all pages and dialogs of a console with their headers, by viewer."""
    answers = {}
    async with asyncio.TaskGroup() as tasks, asked_console(UserDatabases({"notify": brokers}, tasks)) as asked:

        async def note(what: str, answer: httpx2.Response) -> httpx2.Response:
            answers[f"the console: {what}"] = f"{answer.headers}\n{answer.text}"
            return answer

        csrf = csrf_in((await note("the login", await asked.client.get("/login"))).text)
        for given in (wrong, f"Bearer {wrong}", token):
            form = {"token": given, "csrf": csrf, "next": "/notify"}
            await note(
                given[:1], await asked.client.post("/login", headers={"Sec-Fetch-Site": "same-origin"}, data=form)
            )
        for path in (*VIEW_PATHS, *ACTION_PATHS):
            await note(path, await asked.client.get(address(path), params={"topic": "secrets", "group": "secrets"}))
        (session,) = asked.sessions._by_id.values()
        answers["repr of the console"] = repr((asked, session, session.at["notify"].watch.database))
    return answers


def test_a_user_above_its_limits_is_refused_and_another_is_not(secured: Secured) -> None:
    anna, anna_token = secured.new()
    _, bert_token = secured.new()
    limited = secured.user("limit", anna, "--messages", "1", "--bytes", "0")
    assert limited["limits"] == {"in_flight_bytes": 0, "messages_per_s": 1}
    many = [Message("limited", b"x")] * 1000
    with (
        Producer(secured.first.address, group="a", token=anna_token, timeout_s=1) as greedy,
        Producer(secured.first.address, group="b", token=bert_token) as modest,
    ):

        def flood() -> None:
            for _ in range(4):  # the limit applies to each of the two brokers
                greedy.send_many(many)

        until_told(f"user {anna} is at its limit", flood)
        modest.send_many(many)
        modest.send(Message("limited", b"x"))
    assert secured.user("limit", anna, "--default")["limits"] == {}
    with Producer(secured.first.address, group="a", token=anna_token) as free:
        free.send_many(many)
        free.send(Message("limited", b"x"))


def test_an_imported_access_key_is_stored_with_its_secret_for_its_user_only(secured: Secured, tmp_path: Path) -> None:
    (name, _), (other, _) = secured.new(), secured.new()
    file, secret = tmp_path / "access-keys.key", f"s3cret-{name}"
    KeyFile.make(file)
    key_id = f"LTAI.{name}"[:64]

    def imported(user: str, *args: str, status: int = 0) -> str:
        return said(
            "user", "access-key", "import", user, key_id, "--access-key-file", str(file), *args, "--broker",
            secured.first.address, "--token-file", str(secured.admin), status=status, answer=f"{secret}\r\n",
        )  # fmt: skip

    assert secret not in imported(name)
    with BlockingChannel(secured.first.address, token=secured.admin) as channel:
        reply = channel.call(AccessWatch.watch, WatchAccess(access_keys=True), timeout_s=WAIT_S)
    (kept,) = [key for key in reply.access_keys if key.id == key_id]
    opened = KeyFile(file).open(AccessKey(id=key_id, user=name, sealed_secret=kept.sealed_secret))
    assert opened == secret.encode()
    for user in (name, other):
        assert f"there is an access key {key_id} already" in imported(user, status=1)
    too_short = tmp_path / "secret"
    too_short.write_text("short\n")
    assert "of 5 characters, cannot be kept" in imported(other, "--secret-file", str(too_short), status=1)


def test_two_access_keys_per_user_are_stored_encrypted_and_sent_to_watchers(secured: Secured, tmp_path: Path) -> None:
    name, _ = secured.new()
    file = tmp_path / "access-keys.key"
    said("user", "access-key", "file", str(file))

    def access_key(command: str, *args: str) -> Any:
        return json_of(
            "user", "access-key", command, name, *args, "--broker", secured.first.address, "--token-file",
            str(secured.admin),
        )  # fmt: skip

    def watched() -> dict[str, bytes]:
        with BlockingChannel(secured.first.address, token=secured.admin) as channel:
            assert not channel.call(AccessWatch.watch, WatchAccess(), timeout_s=WAIT_S).access_keys
            reply = channel.call(AccessWatch.watch, WatchAccess(access_keys=True), timeout_s=WAIT_S)
        return {key.id: key.sealed_secret for key in reply.access_keys if key.user == name}

    old, new = (access_key("create", "--access-key-file", str(file)) for _ in range(2))
    assert [key["id"] for key in access_key("list")["access_keys"]] == [new["access_key"], old["access_key"]]
    with pytest.raises(AssertionError, match="2 access keys, as many as may be"):
        access_key("create", "--access-key-file", str(file))
    kept = watched()
    for made in (old, new):
        key = AccessKey(id=made["access_key"], user=name, sealed_secret=kept[made["access_key"]])
        assert KeyFile(file).open(key) == made["secret"].encode()
        assert made["secret"].encode() not in key.sealed_secret
    assert [key["id"] for key in access_key("revoke", old["access_key"])["access_keys"]] == [new["access_key"]]
    assert set(watched()) == {new["access_key"]}
    assert len(secured.user("show", name)["tokens"]) == 1
    secured.user("revoke", name)
    assert not watched()
    with pytest.raises(AssertionError, match="has no access key with this id"):
        access_key("revoke", new["access_key"])
