"""Every method of every service, called by each kind of unauthorized user at a real broker and a MetaQ server: the
effect of rights, and of ids of other users.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.integration.cli_harness import TIMEOUT_S, json_of, said
from tests.metaq.servers import served
from tests.methods import made, parts_of
from tests.unit.test_permissions import METHODS
from tests.waiting import until
from tests.wire.certificates import Authority
from txmsg.administration.access import AccessService, AlterUser, LimitUser, NewUser, Revoke
from txmsg.administration.alerts import NewSilence
from txmsg.administration.ask import Nothing
from txmsg.administration.audit import AuditQuery
from txmsg.administration.cluster import ClientQuery
from txmsg.administration.dead_letters import DeadLetterBatch, DeadLetterFilter, DeadLetterQuery
from txmsg.administration.groups import GroupName, GroupQuery, RetryQuery
from txmsg.administration.halves import HalfDecision, HalfQuery, ResumeHalves
from txmsg.administration.messages import MessageQuery, TraceQuery
from txmsg.administration.settings import ChangeSetting, SettingHistoryQuery, WatchSettings
from txmsg.administration.topics import CreateTopic, TopicName, TopicQuery
from txmsg.client import AsyncProducer, Consumer
from txmsg.errors import MisuseError, PermissionDenied, TxmsgError
from txmsg.message import Message, new_transaction_id, now_us
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.ops.cli.main import main
from txmsg.wire.access.permissions import PERMISSIONS
from txmsg.wire.access.rules import RIGHTS, ResourceKind, Rule, parse_rule
from txmsg.wire.access.tokens import new_token
from txmsg.wire.address import host_and_port
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.channel import Channel
from txmsg.wire.connection import greeting
from txmsg.wire.failures import error_of_bytes
from txmsg.wire.frames import LAST, FrameReader, call_head, frame_of
from txmsg.wire.frames import WireFrameKind as FrameKind
from txmsg.wire.method import packed
from txmsg.wire.tls import client_context
from txmsg.wire.users import AccessWatch, WatchAccess
from txmsg.wire.v1 import (
    txmsg_pb2,
)
from txmsg.wire.v1.txmsg_rpc import Notify

MINE, OTHER = "mine", "other"
ALL_RIGHTS = [(right.action, right.kind) for right in RIGHTS if right.kind is not ResourceKind.CLUSTER]


class Place:
    """The servers and the tokens of users."""

    def __init__(self, storage: str, broker: str, log: str, admin: str) -> None:
        self.storage, self.broker, self.log = storage, broker, log
        self.tokens = {"ops": admin, "nobody": "", "unknown": new_token().text}
        self._channels: dict[tuple[str, str], BlockingChannel] = {}
        self.stack = ExitStack()

    def call(self, user: str, method: str, request: Any) -> Any:
        """Call a method as this user at the server that has it. Streams: returns the first reply."""
        address = self.log if method.startswith("MetaQ") else self.broker
        if (user, address) not in self._channels:
            channel = self.stack.enter_context(BlockingChannel(address, token=self.tokens[user], tls=False))
            self._channels[user, address] = channel
        channel, found = self._channels[user, address], METHODS[method]
        if found.gives_data:
            return list(channel.replies_with_data(found, request, timeout_s=TIMEOUT_S))
        if found.gives_many:
            return next(iter(channel.replies(found, [request], timeout_s=TIMEOUT_S)), None)
        return channel.call(found, request, timeout_s=TIMEOUT_S)

    def new(self, user: str, *rules: str) -> None:
        made = self.call("ops", "Access/CreateUser", NewUser(name=user))
        self.tokens[user] = made.token
        for rule in rules:
            self.allow(user, rule)

    def allow(self, user: str, rule: str) -> None:
        self.call("ops", "Rules/Allow", rule_of(user, rule))

    def code(self, user: str, method: str) -> str:
        """Return the code with which a call fails that names what is `mine`; "" if it succeeds."""
        try:
            self.call(user, method, asking(method))
        except TxmsgError as exc:
            return exc.code
        return ""


def rule_of(user: str, rule: str) -> Rule:
    return parse_rule(user, *rule.split(" "))


def asking(method: str) -> Any:
    """Return a request that names `mine` in all name fields, with everything that makes it need more rights."""
    needs = PERMISSIONS[method]
    return filled(METHODS[method].request, [path for need in needs for path in (need.when, need.path) if path])


def filled(kind: Any, paths: Sequence[str]) -> Any:
    """Return a request, or a part of one, with `mine`, or true, in the fields at these paths."""
    within: dict[str, list[str]] = {}
    for path in paths:
        first, _, rest = path.partition(".")
        within.setdefault(first.removesuffix("[]"), []).append(rest)
    values = {}
    for name, rests in within.items():
        part = parts_of(kind)[name]
        one = filled(part.kind, [each for each in rests if each]) if part.is_message else _WITH[part.kind]
        values[name] = [one] if part.is_list else one
    return made(kind, **values)


_WITH = {str: MINE, bool: True, bytes: bytes(16)}


@pytest.fixture(scope="module")
def place(postgres: PostgresServer, notify_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory, name = tmp_path_factory.mktemp("permissions"), f"permissions_{os.getpid()}"
    storage = postgres.create_database(name, template=notify_template)
    admin = json_of("user", "create", "ops", "--role", "admin", "--storage", storage)["token"]
    log_token = json_of("user", "create", "log", "--storage", storage)["token"]
    said("acl", "allow", "log", "read", "cluster", "--storage", storage)
    with (
        pytest.MonkeyPatch.context() as environment,
        BrokerProcess(storage, "--auth", log=directory / "broker.log") as broker,
    ):
        environment.delenv("TXMSG_TOKEN_FILE", raising=False)
        environment.setenv("TXMSG_TOKEN", log_token)
        config = MetaQConfig(data_dir=directory / "log", listen="127.0.0.1:0", access_from=broker.address)
        with served(config) as log:
            environment.delenv("TXMSG_TOKEN")
            place = Place(storage, broker.address, log, admin)
            with place.stack:
                prepare(place)
                yield place
    postgres.drop_database(name)


def prepare(place: Place) -> None:
    until(lambda: place.code("ops", "MetaQ/Describe") == "")
    place.new("bare")
    place.new(OTHER, *(f"{action} {kind}:{OTHER}*" for action, kind in ALL_RIGHTS))
    place.new("revoked")
    place.call("ops", "Access/Revoke", Revoke(name="revoked"))
    place.new("expired")
    with psycopg.connect(place.storage, autocommit=True, connect_timeout=10) as connection:
        connection.execute(
            "update txmsg.access_token set expires_at = now() - interval '1 s' where user_name = 'expired'"
        )
        connection.execute("update txmsg.access_version set version = version + 1")
    for method in ("Access/WhoAmI", "MetaQ/Describe"):
        until(lambda method=method: place.code("expired", method) == "unauthenticated")  # type: ignore[misc]
        until(lambda method=method: place.code(OTHER, method) == "")  # type: ignore[misc]


Codes = dict[str, dict[str, str]]
STRANGERS = ["nobody", "unknown", "expired", "revoked"]
FOREIGN = "certificate of another CA"


@pytest.fixture(scope="module")
def codes(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Codes:
    """The code with which each call fails that names what is `mine`, by kind of user and method; "" if it succeeds."""
    found: Codes = {user: {method: place.code(user, method) for method in METHODS} for user in ("bare", OTHER, "ops")}
    of_log = {method for method in METHODS if method.startswith("MetaQ")}
    for user in STRANGERS:
        found[user] = {
            **codes_at_login(place.broker, place.tokens[user], METHODS.keys() - of_log),
            **codes_at_login(place.log, place.tokens[user], of_log),
        }
    directory = tmp_path_factory.mktemp("authorities")
    ours, theirs = Authority(directory / "ours"), Authority(directory / "theirs")
    certificate, key = ours.issue("127.0.0.1")
    options = ("--auth", "--tls-cert", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(ours.file))
    context = client_context(str(ours.file))
    assert context is not None
    with BrokerProcess(place.storage, *options, log=directory / "broker.log") as broker:
        context.load_cert_chain(*theirs.issue("ops", "client"))
        found[FOREIGN] = codes_at_login(broker.address, place.tokens["ops"], METHODS.keys() - of_log, context)
        context.load_cert_chain(*ours.issue("ops", "client"))
        own = codes_at_login(broker.address, place.tokens["ops"], {"Access/WhoAmI"}, context)
        assert own == {"Access/WhoAmI": ""}, "with one of its authority it is let in"
    return found


def codes_at_login(address: str, token: str, methods: Set[str], tls: ssl.SSLContext | None = None) -> dict[str, str]:
    """The codes of calls that are sent together with the greeting, before the authentication is complete."""
    numbers = dict(enumerate(sorted(methods), start=1))
    calls = b"".join(
        frame_of(FrameKind.CALL, LAST, number, call_head(method.encode(), 0) + packed(asking(method)))
        for number, method in numbers.items()
    )
    found: dict[str, str] = {}
    reader = FrameReader()
    with ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(host_and_port(address), timeout=TIMEOUT_S))
        try:
            if tls is not None:
                connection = stack.enter_context(tls.wrap_socket(connection, server_hostname="127.0.0.1"))
            connection.sendall(greeting(blocking=True, token=token) + calls)
            while len(found) < len(numbers) and (data := connection.recv(65536)):
                for frame in reader.feed(data):
                    if frame.kind == FrameKind.GOAWAY:
                        assert frame.call == 0, "some calls were begun"
                        return dict.fromkeys(methods, error_of_bytes(frame.payload, address).code)
                    if frame.kind in {FrameKind.REPLY, FrameKind.PUSH}:
                        found[numbers[frame.call]] = ""
                    elif frame.kind == FrameKind.ERROR:
                        found[numbers[frame.call]] = error_of_bytes(frame.payload, address).code
        except (ssl.SSLError, ConnectionError):
            return found | {method: "no connection" for method in methods if method not in found}
    return found


def test_nothing_is_answered_without_a_valid_credential(codes: Codes) -> None:
    for user in STRANGERS:
        assert codes[user] == dict.fromkeys(METHODS, "unauthenticated"), user


def test_every_method_has_an_answer_for_every_kind_of_user(codes: Codes) -> None:
    """The table is printed with `pytest -s`, for reviews."""
    shown = {**dict.fromkeys(STRANGERS), "bare": "no rights", OTHER: "rights on others", FOREIGN: None, "ops": "admin"}
    table = Table(*["method", *(title or user for user, title in shown.items())])
    for method in METHODS:
        table.add_row(method, *(codes[user].get(method, "-") or "answered" for user in shown))
    Console(width=200).print(table)
    assert table.row_count == len(PERMISSIONS)


def test_a_denied_decision_adds_no_audit_entry(place: Place, half: bytes) -> None:
    decide = HalfDecision(transaction_id=UUID(bytes=half), commit=True)
    with pytest.raises(PermissionDenied):
        place.call(OTHER, "Admin/ResolveHalf", decide)
    listed = place.call("ops", "Audit/List", AuditQuery(target=str(UUID(bytes=half))))
    assert not listed.entries


def test_a_user_without_a_rule_may_call_only_methods_that_need_none(codes: Codes) -> None:
    refused = {method for method, code in codes["bare"].items() if code == "permission_denied"}
    assert refused == {method for method, needs in PERMISSIONS.items() if any(not need.optional for need in needs)}
    assert "unauthenticated" not in codes["bare"].values()


def test_a_right_on_another_name_does_not_apply(codes: Codes) -> None:
    def is_named(method: str) -> bool:
        needs = PERMISSIONS[method]
        return any(not need.optional and (bool(need.path) or need.right.kind is ResourceKind.CLUSTER) for need in needs)

    refused = {method for method, code in codes[OTHER].items() if code == "permission_denied"}
    assert refused == {method for method in METHODS if is_named(method)}


def test_an_administrator_is_refused_nothing(codes: Codes) -> None:
    assert not {"permission_denied", "unauthenticated"} & set(codes["ops"].values())


def test_a_certificate_of_another_authority_gets_no_connection(codes: Codes) -> None:
    assert set(codes[FOREIGN].values()) == {"no connection"}


# ---- ids of other users


def half_of(place: Place, user: str, group: str, topic: str) -> bytes:
    """Send a half message and return its transaction's id."""
    transaction_id = new_transaction_id().bytes
    batch = txmsg_pb2.MessageColumns(
        topic=topic,
        transaction_id=transaction_id,
        body=[b"secret"],
        headers=[txmsg_pb2.Headers(values={"h": "secret"}).SerializeToString()],
        born_at_us=[1_700_000_000_000_000],
    )
    reply = place.call(user, "Notify/Send", txmsg_pb2.SendRequest(group=group, half=True, batches=[batch]))
    assert not reply.errors
    return transaction_id


@pytest.fixture(scope="module")
def half(place: Place) -> bytes:
    """A half message of producer group shop in topic mine."""
    place.new("shop", "send topic:mine", "send group:shop", "check group:shop")
    return half_of(place, "shop", "shop", MINE)


def test_an_unauthorized_user_cannot_end_a_transaction_by_id(place: Place, half: bytes) -> None:
    for request in (
        txmsg_pb2.EndTransactionsRequest(commit=half),
        txmsg_pb2.EndTransactionsRequest(rollback=half),
        txmsg_pb2.EndTransactionsRequest(unknown=half),
    ):
        for group in ("", "shop"):
            request.group = group
            with pytest.raises(PermissionDenied):
                place.call(OTHER, "Notify/EndTransactions", request)
        request.group = OTHER
        errors = place.call(OTHER, "Notify/EndTransactions", request).errors
        assert [error.code for error in errors] == ["outcome_expired"]
    changes: dict[str, Any] = {
        "Admin/ResolveHalf": HalfDecision(transaction_id=UUID(bytes=half), commit=True),
        "Admin/ResumeHalves": ResumeHalves(transaction_id=UUID(bytes=half)),
    }
    for method, change in changes.items():
        with pytest.raises(PermissionDenied, match="allow other administer group:shop"):
            place.call(OTHER, method, change)
    with pytest.raises(PermissionDenied, match="allow other check group:shop"):
        place.call(OTHER, "Notify/Held", txmsg_pb2.HeldRequest(transaction_ids=half))
    held = place.call("shop", "Notify/Held", txmsg_pb2.HeldRequest(transaction_ids=half))
    assert held.held == half, "it is undecided still"
    own = half_of(place, "shop", "shop", MINE)
    ended = place.call("shop", "Notify/EndTransactions", txmsg_pb2.EndTransactionsRequest(group="shop", rollback=own))
    assert not ended.errors


def test_an_unauthorized_user_cannot_find_a_half_message_or_its_topic(place: Place, half: bytes) -> None:
    id_ = str(UUID(bytes=half))
    listed = HalfQuery(transaction_id=UUID(bytes=half), with_bodies=True)
    find = MessageQuery(id=id_, with_bodies=True)
    trace = TraceQuery(id=id_)
    assert not place.call(OTHER, "Admin/ListHalves", listed).halves
    assert not place.call(OTHER, "Messages/Find", find).messages
    assert not place.call(OTHER, "Messages/Trace", trace).messages
    assert MINE not in {each.settings.topic for each in place.call(OTHER, "Topics/List", TopicQuery()).topics}
    [found] = place.call("ops", "Messages/Find", find).messages
    assert found.body == b"secret"
    assert place.call("ops", "Messages/Trace", trace).messages


def test_pages_hide_names_and_ids_of_others(place: Place, half: bytes) -> None:
    place.new("pager", "describe topic:pages*", "describe group:pages*", "send topic:pages*", "send group:pages*")
    for _ in range(2):
        half_of(place, "shop", "shop", MINE)
    for name in ("a-page", "pages1", "pages2", "z-page"):
        place.call("ops", "Topics/Create", CreateTopic(topic=name))
        half_of(place, "ops", name, name)
    halves = place.call("pager", "Admin/ListHalves", HalfQuery(limit=1))
    assert [each.group for each in halves.halves] == ["pages1"]
    halves = place.call("pager", "Admin/ListHalves", HalfQuery(limit=1, after=halves.next))
    assert ([each.group for each in halves.halves], halves.next) == (["pages2"], None)
    topics = place.call("pager", "Topics/List", TopicQuery(limit=1))
    assert ([each.settings.topic for each in topics.topics], topics.next) == (["pages1"], "pages1")
    topics = place.call("pager", "Topics/List", TopicQuery(limit=1, after=topics.next or ""))
    assert ([each.settings.topic for each in topics.topics], topics.next) == (["pages2"], None)
    groups = place.call("pager", "Groups/List", GroupQuery(limit=1, after="pages1"))
    assert ([each.group for each in groups.producer_groups], groups.next) == (["pages2"], None)
    letters = place.call("pager", "DeadLetters/List", DeadLetterQuery(limit=1))
    assert (list(letters.letters), letters.next) == ([], None)


def test_bodies_need_the_right_to_read_and_are_marked_as_withheld(place: Place, half: bytes) -> None:
    place.new("clerk", "describe topic:mine", "describe group:shop")
    listed = HalfQuery(transaction_id=UUID(bytes=half), with_bodies=True)
    find = MessageQuery(id=str(UUID(bytes=half)), with_bodies=True)
    [row], [found] = (
        place.call("clerk", "Admin/ListHalves", listed).halves,
        place.call("clerk", "Messages/Find", find).messages,
    )
    assert {(each.body, len(each.headers), each.is_withheld) for each in (row, found)} == {(b"", 0, True)}
    place.allow("clerk", "read topic:mine")
    [row], [found] = (
        place.call("clerk", "Admin/ListHalves", listed).halves,
        place.call("clerk", "Messages/Find", find).messages,
    )
    assert {(each.body, each.is_withheld) for each in (row, found)} == {(b"secret", False)}
    assert row.headers == found.headers != {}


def test_recalling_a_delayed_message_needs_the_right_to_send(place: Place) -> None:
    place.new("delayer", "send topic:mine")
    transaction_id = new_transaction_id().bytes
    batch = txmsg_pb2.MessageColumns(
        topic=MINE,
        transaction_id=transaction_id,
        body=[b"later"],
        born_at_us=[1_700_000_000_000_000],
        deliver_at_us=[now_us() + 3_600_000_000],
    )
    request = txmsg_pb2.SendRequest(batches=[batch])
    assert not place.call("delayer", "Notify/Send", request).errors
    recall = txmsg_pb2.RecallRequest(transaction_ids=transaction_id + new_transaction_id().bytes)
    assert list(place.call(OTHER, "Notify/Recall", recall).results) == [txmsg_pb2.RecallReply.UNKNOWN] * 2
    for _ in range(2):
        results = list(place.call("delayer", "Notify/Recall", recall).results)
        assert results == [txmsg_pb2.RecallReply.RECALLED, txmsg_pb2.RecallReply.UNKNOWN]


async def test_only_sends_to_forbidden_topics_of_a_producer_fail(place: Place) -> None:
    place.new("joined", "send topic:mine")
    async with AsyncProducer(place.broker, group="joined", token=place.tokens["joined"], tls=False) as producer:
        topics = [MINE, MINE, "theirs", MINE, "others"] * 20
        sent = await asyncio.gather(*(producer.send(Message(topic, b"x")) for topic in topics), return_exceptions=True)
    failed = [(topic, result) for topic, result in zip(topics, sent, strict=True) if isinstance(result, Exception)]
    assert {topic for topic, _ in failed} == {"theirs", "others"}
    assert len(failed) == 40
    for topic, error in failed:
        with pytest.raises(PermissionDenied, match=f"joined may not send topic:{topic}"):
            raise error
    names = {each.settings.topic for each in place.call("ops", "Topics/List", TopicQuery()).topics}
    assert not names & {"theirs", "others"}, "a topic is not created by who may not send to it"


async def test_clients_are_shown_only_under_groups_they_may_use(place: Place) -> None:
    place.new("worker", "receive topic:mine", "receive group:crew", "send group:crew")
    receive = txmsg_pb2.ReceiveRequest(
        group="crew", client_id="w1", max_messages=1, subscriptions=[txmsg_pb2.Subscription(topic=MINE)]
    )
    await asyncio.to_thread(place.call, "worker", "Notify/Receive", receive)

    async def attached(user: str, **hello: Any) -> tuple[Any, list[Any], list[str | None]]:
        """Return a client as shown to operators: its entry, the entries of the group, and the hosts of the group's
        members.
        """
        async with Channel(place.broker, token=place.tokens[user], tls=False) as channel:
            frame = txmsg_pb2.ClientFrame(hello=txmsg_pb2.Hello(client_id="w1", host=user, **hello))
            stream = await channel.stream(Notify.attach, frame, timeout_s=TIMEOUT_S)
            await stream.receive()
            clients = await asyncio.to_thread(place.call, "ops", "Cluster/Clients", ClientQuery())
            shown = await asyncio.to_thread(place.call, "ops", "Groups/Show", GroupName(group="crew"))
            stream.close()
        [own] = [client for client in clients.clients if client.host == user]
        return (
            own,
            [each for each in clients.clients if each.producer_group == "crew"],
            [member.host for member in shown.members],
        )

    own, others, hosts = await attached("bare", producer_group="crew")
    assert (own.producer_group, others, hosts) == (None, [], [None])
    own, others, hosts = await attached("worker", producer_group="crew", consumer_group="crew")
    assert (own.producer_group, others, hosts) == ("crew", [own], ["worker"])


async def test_a_user_watch_ends_when_its_rule_is_revoked(place: Place) -> None:
    place.new("follower", "read cluster")
    async with Channel(place.broker, token=place.tokens["follower"], tls=False) as channel:
        known = await channel.call(AccessWatch.watch, WatchAccess(), timeout_s=TIMEOUT_S)
        request = WatchAccess(version=known.version, wait_ms=60_000)
        watching = asyncio.create_task(channel.call(AccessWatch.watch, request, timeout_s=TIMEOUT_S))
        await channel.call(AccessService.who_am_i, Nothing(), timeout_s=TIMEOUT_S)  # the broker has both
        rule = rule_of("follower", "read cluster")
        await asyncio.to_thread(place.call, "ops", "Rules/Deny", rule)
        with pytest.raises(PermissionDenied, match="follower may not read cluster"):
            await watching


def test_a_client_can_watch_only_client_settings(place: Place) -> None:
    place.call("bare", "Settings/Watch", WatchSettings(prefixes=["client.", "app.x"]))
    for prefixes in ([""], ["broker."], ["client.", "b"]):
        with pytest.raises(PermissionDenied, match="describe cluster"):
            place.call("bare", "Settings/Watch", WatchSettings(prefixes=prefixes))


def test_counting_and_purging_dead_letters_of_all_groups_needs_a_right_on_all(place: Place) -> None:
    everything = DeadLetterFilter()
    with pytest.raises(PermissionDenied, match=r"describe 'group:\*'"):
        place.call(OTHER, "DeadLetters/Count", everything)
    with pytest.raises(PermissionDenied, match=r"administer 'group:\*'"):
        place.call(OTHER, "DeadLetters/Purge", DeadLetterBatch(which=everything, limit=1))
    place.call(OTHER, "DeadLetters/List", DeadLetterQuery())


# ---- topics and groups created by users


def receive(group: str) -> txmsg_pb2.ReceiveRequest:
    wanted = txmsg_pb2.Subscription(topic=MINE, tags="*")
    return txmsg_pb2.ReceiveRequest(group=group, client_id="c", subscriptions=[wanted], max_messages=1)


def test_limits_on_topics_and_groups_of_a_user_apply_and_are_audited(place: Place) -> None:
    place.new("maker", "administer topic:made*", "send topic:made*", "receive topic:*", "receive group:made*")
    place.call("ops", "Topics/Create", CreateTopic(topic=MINE))
    limits = LimitUser(name="maker", limits={"topics": 2, "groups": 1})
    place.call("ops", "Access/LimitUser", limits)
    for _ in range(2):  # an existing topic is not created
        for name in ("made1", "made2"):
            place.call("maker", "Topics/Create", CreateTopic(topic=name))
        place.call("maker", "Notify/Receive", receive("made1"))
    for method, request, option in (
        ("Topics/Create", CreateTopic(topic="made3"), "--topics-max"),
        ("Notify/Receive", receive("made2"), "--groups-max"),
        ("Notify/Receive", receive("made2%member"), "--groups-max"),
    ):
        with pytest.raises(PermissionDenied, match=f"txmsg user limit maker {option} N"):
            place.call("maker", method, request)
    for new in (["made3"], ["made3", "made4"]):  # messages of the request for other topics are sent
        batches = [plain_to(topic).batches[0] for topic in ("made1", *new)]
        errors = place.call("maker", "Notify/Send", txmsg_pb2.SendRequest(batches=batches)).errors
        assert {(error.transaction_id, error.code) for error in errors} == {
            (batch.transaction_id, "permission_denied") for batch in batches[1:]
        }
    audited = place.call("ops", "Audit/List", AuditQuery(who="maker")).entries
    assert {(entry.action, entry.target) for entry in audited} == {
        ("topic.create", "made1"),
        ("topic.create", "made2"),
        ("group.create", "made1"),
    }
    with psycopg.connect(place.storage, connect_timeout=10) as connection:
        made = connection.execute("select name, created_by from txmsg.topic where name like 'made%'").fetchall()
    assert set(made) == {("made1", "maker"), ("made2", "maker")}


def test_limits_of_users_are_live_and_those_of_one_user_take_precedence(place: Place) -> None:
    place.new("maker2", "administer topic:live*")

    def create(name: str) -> None:
        place.call("maker2", "Topics/Create", CreateTopic(topic=name))

    create("live1")
    setting = ChangeSetting(name="broker.user.topics_max", value="1", changed_by="ops")
    place.call("ops", "Settings/Change", setting)
    with pytest.raises(PermissionDenied, match="has created 1 topics"):
        create("live2")
    place.call("ops", "Access/LimitUser", LimitUser(name="maker2", limits={"topics": 2}))
    create("live2")
    place.call("ops", "Access/LimitUser", LimitUser(name="maker2", others_default=True))
    unset = ChangeSetting(name="broker.user.topics_max", changed_by="ops")
    place.call("ops", "Settings/Change", unset)
    create("live3")


def test_changes_are_attributed_to_the_authenticated_user(place: Place) -> None:
    place.new("liar", "administer cluster", "describe cluster")
    changed = ChangeSetting(name="app.lie", value="1", changed_by="ops")
    assert place.call("liar", "Settings/Change", changed).changed_by == "liar"
    changed = ChangeSetting(name="app.lie", as_of=0, changed_by="ops")
    with pytest.raises(MisuseError):
        place.call("liar", "Settings/Change", changed)
    version = place.call("liar", "Settings/History", SettingHistoryQuery(name="app.lie")).changes[0].version
    changed = ChangeSetting(name="app.lie", as_of=version, changed_by="ops")
    assert place.call("liar", "Settings/Change", changed).changed_by == "liar"
    silence = NewSilence(matchers=["rule=x"], for_s=60, reason="r", created_by="ops")
    assert place.call("liar", "Alerts/Silence", silence).created_by == "liar"
    audited = place.call("ops", "Audit/List", AuditQuery(who="liar")).entries
    assert {entry.action for entry in audited} == {"setting.set", "alert.silence"}
    assert not any('"ops"' in entry.after for entry in audited)


_TAKEN_FROM_REQUESTS = {"changed_by", "created_by"}
"""Request fields that name the caller; the stored name is their `signature`."""


def test_no_other_request_field_names_the_caller() -> None:
    found = {
        name
        for method in METHODS.values()
        for name in parts_of(method.request)
        if re.search(r"(^|_)(by|who|actor|user|owner|principal)$", name)
    }
    assert found - {"who"} == _TAKEN_FROM_REQUESTS  # `who` of Audit/List chooses entries


# ---- objects of others in search results

_BURIED = """
insert into txmsg.consumer_group (name) values ('mine.dead'), ('other.dead');
insert into txmsg.cursor (group_id, queue_id, next_offset, epoch)
select g.id, q.id, 0, 0 from txmsg.consumer_group g, txmsg.queue q join txmsg.topic t on t.id = q.topic_id
 where g.name in ('mine.dead', 'other.dead') and t.name in ('mine', 'other.found');
insert into txmsg.dead_letter (group_id, queue_id, queue_offset, attempts, died_at, transaction_id, n, body, headers,
                               born_at, stored_at, last_error, failures)
select g.id, (select min(q.id) from txmsg.queue q join txmsg.topic t on t.id = q.topic_id where t.name = 'mine'),
       o, 1, now() - make_interval(secs => 100 - o), ('00000000-0000-7000-8000-00000000000' || o)::uuid, 0, 'secret',
       'secret', now(), now(), 'ValueError: secret', '[{"attempt": 1, "error": "ValueError: secret"}]'
  from txmsg.consumer_group g, generate_series(1, 6) o
 where g.name = case when o % 3 = 0 then 'other.dead' else 'mine.dead' end;
"""


_FAILED_ONCE = """
insert into txmsg.retry (group_id, queue_id, queue_offset, attempt, due_at, transaction_id, n, body, born_at, stored_at,
                         last_error, failures)
select group_id, queue_id, 3000, 1, 'infinity', transaction_id, n, body, born_at, stored_at, last_error, failures
  from txmsg.dead_letter where queue_offset = 3;
"""


_DIED = """
insert into txmsg.dead_letter (group_id, queue_id, queue_offset, attempts, died_at, transaction_id, n, body, born_at,
                               stored_at, last_error, failures)
select g.id, m.queue, m.queue_offset, 1, now(), m.transaction_id, m.n, m.body, m.born_at, m.stored_at,
       'ValueError: secret', '[{"attempt": 1, "error": "ValueError: secret"}]'
  from txmsg.message m, txmsg.consumer_group g where m.transaction_id = %s and g.name = 'other.dead';
"""


@pytest.fixture(scope="module")
def buried(place: Place) -> None:
    """Create dead letters of topic mine, two of six in group other.dead; both groups also read topic other.found."""
    for topic in (MINE, "other.found"):
        place.call("ops", "Topics/Create", CreateTopic(topic=topic))
    with psycopg.connect(place.storage, autocommit=True, connect_timeout=10) as connection:
        connection.execute(_BURIED)


def letters_of(place: Place, user: str, limit: int) -> tuple[list[Any], int]:
    """Return all dead letters shown to the user, page by page, and the number of pages."""
    request = DeadLetterQuery(limit=limit, whole=True)
    letters, pages = [], 0
    while True:
        reply = place.call(user, "DeadLetters/List", request)
        letters += reply.letters
        pages += 1
        if not reply.next:
            return letters, pages
        request = replace(request, after=reply.next)


@pytest.mark.usefixtures("buried")
def test_pages_of_dead_letters_continue_past_those_of_forbidden_groups(place: Place) -> None:
    everything, pages = letters_of(place, "ops", 1)
    assert ([letter.group for letter in everything].count("mine.dead"), pages >= 6) == (4, True)
    assert {(letter.body, letter.is_withheld) for letter in everything} == {(b"secret", False)}
    for limit in (1, 2, 10_000):
        shown, _ = letters_of(place, OTHER, limit)
        assert [letter.group for letter in shown] == ["other.dead"] * 2, limit
        assert {(letter.body, len(letter.headers), letter.is_withheld) for letter in shown} == {(b"", 0, True)}


@pytest.mark.usefixtures("buried")
def test_error_texts_need_the_right_to_read_the_topic(place: Place) -> None:
    def told(user: str) -> tuple[set[str], set[str]]:
        letters, _ = letters_of(place, user, 10_000)
        return {each.last_error for each in letters}, {failure.error for each in letters for failure in each.failures}

    def found(user: str, topic: str) -> int:
        which = DeadLetterFilter(error="secret", group="other.dead", topic=topic)
        return int(place.call(user, "DeadLetters/Count", which).count)

    withheld = "withheld, as it may quote the message: reading needs the right `read` on topic mine"
    assert told("ops") == ({"ValueError: secret"},) * 2
    assert told(OTHER) == ({withheld},) * 2
    assert found("ops", "") == 2
    for topic in ("", MINE):
        with pytest.raises(PermissionDenied):
            found(OTHER, topic)
    place.new("reader", "describe group:other.*", "read topic:mine")
    assert told("reader") == ({"ValueError: secret"},) * 2
    assert found("reader", MINE) == 2
    sent = plain_to(MINE)
    place.call("ops", "Notify/Send", sent)
    transaction_id = UUID(bytes=sent.batches[0].transaction_id)
    trace = TraceQuery(id=str(transaction_id))
    request = RetryQuery(group="other.dead")
    with psycopg.connect(place.storage, autocommit=True, connect_timeout=10) as connection:
        connection.execute(_FAILED_ONCE)
        connection.execute(_DIED, [transaction_id])
    place.new("clerk.of.errors", "describe group:other.*", "describe topic:mine")
    for user, text in (("clerk.of.errors", withheld), ("reader", "ValueError: secret")):
        [retry] = place.call(user, "Groups/ListRetries", request).retries
        assert (retry.last_error, [each.error for each in retry.failures]) == (text, [text])
        traced = str(place.call(user, "Messages/Trace", trace))
        assert (withheld in traced, "ValueError: secret" in traced) == (text == withheld, text != withheld)
    with psycopg.connect(place.storage, autocommit=True, connect_timeout=10) as connection:  # others count them
        connection.execute("delete from txmsg.dead_letter where transaction_id = %s", [transaction_id])


@pytest.mark.usefixtures("buried")
def test_forbidden_groups_are_left_out_of_topics_traces_and_lists(place: Place) -> None:
    sent = plain_to("other.found")
    place.call("ops", "Notify/Send", sent)
    trace = TraceQuery(id=str(UUID(bytes=sent.batches[0].transaction_id)))
    show = TopicName(topic="other.found")
    for user, groups in (("ops", {"mine.dead", "other.dead"}), (OTHER, {"other.dead"})):
        [traced] = place.call(user, "Messages/Trace", trace).messages
        assert {group.group for group in traced.groups} == groups
        assert {group.group for group in place.call(user, "Topics/Show", show).groups} == groups
        listed = place.call(user, "Groups/List", GroupQuery(contains=".dead", limit=1))
        first, *more = sorted(groups)
        assert ([each.group for each in listed.groups], listed.next) == ([first], first if more else None)
        rest = place.call(user, "Groups/List", GroupQuery(contains=".dead", after=listed.next or ""))
        assert {each.group for each in rest.groups} == {"other.dead"}


def test_clients_of_forbidden_groups_are_left_out(place: Place) -> None:
    def groups_seen(user: str) -> set[str]:
        clients = place.call(user, "Cluster/Clients", ClientQuery(contains=".here")).clients
        return {client.consumer_group for client in clients}

    with ExitStack() as stack:
        for group in ("mine.here", "other.here"):
            consumer = Consumer(place.broker, group=group, token=place.tokens["ops"])
            consumer.subscribe(MINE)(lambda message: None)
            stack.enter_context(consumer)
        until(lambda: groups_seen("ops") == {"mine.here", "other.here"})
        assert groups_seen(OTHER) == {"other.here"}


# ---- rules in commands


def acl(place: Place, *words: str, status: int = 0) -> str:
    """Return the output of the command."""
    result = CliRunner().invoke(main, ["acl", *words, "--storage", place.storage])
    assert result.exit_code == status, result.output
    return result.output


def test_check_names_the_deciding_rule_and_deny_the_rules_that_still_allow(place: Place) -> None:
    place.new("anna")
    name = ("anna", "send", "topic:orders")
    assert acl(place, "check", *name, status=1) == "not allowed: no rule lets anna send topic:orders\n"
    assert acl(place, "allow", *name) == "anna send topic:orders: allowed\n"
    assert acl(place, "allow", *name) == "anna send topic:orders: was allowed already\n"
    acl(place, "allow", "anna", "send", "topic:ord*")
    assert acl(place, "check", *name) == "allowed: anna send topic:orders\n"
    assert not is_denied(place, "anna", "orders")
    denied = acl(place, "deny", *name).splitlines()
    assert denied == ["anna send topic:orders: removed", "still allowed by: anna send topic:ord*"]
    assert acl(place, "check", *name) == "allowed: anna send topic:ord*\n"
    acl(place, "deny", "anna", "send", "topic:ord*")
    until(lambda: is_denied(place, "anna", "orders"))
    assert "no such rule" in acl(place, "deny", "anna", "send", "topic:ord*")


def test_roles_grant_rules_to_users_and_admin_is_built_in(place: Place) -> None:
    place.new("bert")
    place.call("ops", "Access/AlterUser", AlterUser(name="bert", add_roles=["sales"]))
    acl(place, "allow", "role:sales", "send", "topic:leads")
    assert acl(place, "check", "bert", "send", "topic:leads") == "allowed: role:sales send topic:leads\n"
    assert "with the roles sales" in acl(place, "check", "bert", "send", "topic:orders", status=1)
    assert "built in" in acl(place, "check", "ops", "send", "topic:orders")
    until(lambda: not is_denied(place, "bert", "leads"))
    assert json.loads(acl(place, "list", "bert", "--json")) == {
        "rules": [{"principal": "role:sales", "action": "send", "name": "topic:leads"}]
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("allow", "carl", "send", "topic:x"), "there is no user carl"),
        (("check", "carl", "send", "topic:x"), "there is no user carl"),
        (("allow", "role:r", "send", "x"), "use topic:NAME"),
        (("allow", "role:r", "fly", "topic:x"), "'fly' is not an action"),
    ],
)
def test_an_invalid_rule_is_refused(place: Place, words: tuple[str, ...], told: str) -> None:
    assert told in acl(place, *words, status=1)


def plain_to(topic: str) -> txmsg_pb2.SendRequest:
    return txmsg_pb2.SendRequest(
        batches=[
            txmsg_pb2.MessageColumns(
                topic=topic,
                transaction_id=new_transaction_id().bytes,
                body=[b""],
                born_at_us=[1_700_000_000_000_000],
            )
        ]
    )


def is_denied(place: Place, user: str, topic: str) -> bool:
    try:
        place.call(user, "Notify/Send", plain_to(topic))
    except PermissionDenied:
        return True
    return False
