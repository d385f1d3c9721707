"""A MetaQ server with users and rules of a file: each user can do what it may, and nothing with others' data."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.metaq.logs import batch
from tests.metaq.servers import WAIT_S, served
from tests.waiting import until, until_async, until_told
from txmsg.errors import (
    BrokerUnavailable,
    MembershipLost,
    MisuseError,
    Overloaded,
    PermissionDenied,
    TxmsgError,
    Unauthenticated,
)
from txmsg.metaq.location import open_log
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.server.users import UsersOfFile
from txmsg.ops.cli.main import main
from txmsg.settings.common import UserConfig
from txmsg.wire import users as users_module
from txmsg.wire.access.denied import DeniedCalls
from txmsg.wire.access.file import entry_of
from txmsg.wire.access.limits import UserLimits
from txmsg.wire.access.snapshot import User
from txmsg.wire.access.tokens import new_token
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.handlers import Handlers
from txmsg.wire.server import WireServer
from txmsg.wire.shared import Shared
from txmsg.wire.users import (
    AccessWatch,
    UsersOfBrokers,
    WatchAccess,
    WatchedAccess,
    WatchedRule,
    snapshot_of,
)
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQ, MetaQGroups

TOKENS = {name: new_token() for name in ("producer", "consumer", "stranger", "ops")}
RULES = {
    "producer": ["send topic:orders"],
    "consumer": ["receive topic:orders", "receive group:billing"],
    "stranger": ["receive topic:trades", "receive group:audit", "send topic:trades", "describe topic:trades"],
    "ops": ["describe topic:*", "describe group:*", "administer group:*", "administer topic:*", "describe cluster"],
}


def file_of(rules: dict[str, list[str]]) -> str:
    users = "".join(f'[users.{name}]\ntokens = ["{entry_of(token)}"]\n' for name, token in TOKENS.items())
    return users + "[rules]\n" + "".join(f"{name} = {entries!r}\n" for name, entries in rules.items())


def replace(path: Path, text: str) -> None:
    """Replace a file by renaming, so that it is never read half written."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server, and its users file."""
    directory = tmp_path_factory.mktemp("metaq-access")
    file = directory / "access.toml"
    replace(file, file_of(RULES))
    with served(MetaQConfig(data_dir=directory / "log", listen="127.0.0.1:0", access=file)) as address:
        yield address, file


@pytest.fixture
def call(place: tuple[str, Path]) -> Iterator[Any]:
    """Return a function that calls as a user."""
    with ExitStack() as stack:
        channels: dict[str, BlockingChannel] = {}

        def as_user(user: str, method: Any, request: Any) -> Any:
            if user not in channels:
                token = TOKENS[user].text if user else ""
                channels[user] = stack.enter_context(BlockingChannel(place[0], token=token, tls=False))
            return channels[user].call(method, request, timeout_s=WAIT_S)

        yield as_user


def set_topic(topic: str) -> pb.SetLogTopicRequest:
    return pb.SetLogTopicRequest(topic=topic, settings=pb.LogTopicSettings(flush="sync", compression="none"))


def join(session: bytes, group: str, *topics: str) -> pb.JoinGroupRequest:
    return pb.JoinGroupRequest(session=session, group=group, topics=topics, strategy="average", session_ms=10_000)


def test_client_without_a_token_is_refused(call: Any) -> None:
    with pytest.raises(Unauthenticated):
        call("", MetaQ.describe, pb.DescribeLogRequest())


def test_server_state_requires_permission_to_describe_the_cluster(call: Any) -> None:
    told = call("stranger", MetaQ.describe, pb.DescribeLogRequest())
    shown = {field.name for field, _ in told.ListFields()}
    assert shown == {"log_id", "generation", "release"}, "which log it is, and no host, directory or size"
    told = call("ops", MetaQ.describe, pb.DescribeLogRequest())
    assert {"size_bytes", "waiting", "sessions", "appending_bytes"} < {field.name for field, _ in told.ListFields()}


def test_lists_contain_only_topics_and_groups_the_user_can_describe(call: Any) -> None:
    for topic in ("orders", "trades"):
        call("ops", MetaQ.set_topic, set_topic(topic))
    call("consumer", MetaQGroups.join, join(b"l" * 16, "billing", "orders"))

    def listed(user: str) -> set[str]:
        queues = call(user, MetaQ.list_topics, pb.ListLogTopicsRequest())
        return {each.topic for each in queues.topics}

    everything = listed("ops")
    assert listed("stranger") == everything & {"trades"}
    assert listed("producer") == everything & {"orders"}
    assert list(call("ops", MetaQGroups.list_groups, pb.ListLogGroupsRequest()).groups) == ["billing"]
    assert list(call("stranger", MetaQGroups.list_groups, pb.ListLogGroupsRequest()).groups) == []
    with pytest.raises(PermissionDenied):
        call("producer", MetaQGroups.list_groups, pb.ListLogGroupsRequest())


def test_session_can_be_used_only_by_the_user_that_joined(call: Any) -> None:
    session = b"s" * 16
    call("consumer", MetaQGroups.join, join(session, "billing", "orders"))
    request = pb.MemberRequest(session=session, call=1)
    with pytest.raises(MembershipLost):
        call("stranger", MetaQGroups.view, request)
    with pytest.raises(MembershipLost):
        call("stranger", MetaQGroups.join, join(session, "audit", "trades"))
    with pytest.raises(PermissionDenied):
        call("producer", MetaQGroups.view, request)
    call("stranger", MetaQGroups.leave, request)  # as for a session that is not there
    assert call("consumer", MetaQGroups.view, request).members


def test_denied_calls_are_logged_once_a_minute_for_each_user(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    calls = DeniedCalls(lambda: now)
    for user in ("eve", "eve", "bob"):
        calls.add(user, "10.0.0.1", "send topic:orders")
    now = 60.0
    calls.add("eve", "10.0.0.1", "read topic:orders")
    assert [record.getMessage() for record in caplog.records] == [
        "user eve from 10.0.0.1 may not send topic:orders",
        "user bob from 10.0.0.1 may not send topic:orders",
        "user eve from 10.0.0.1 may not read topic:orders",
    ]


def test_a_call_that_is_denied_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "access.toml"
    replace(file, file_of(RULES))
    config = MetaQConfig(data_dir=tmp_path / "log", listen="127.0.0.1:0", access=file)
    with served(config) as address, BlockingChannel(address, token=TOKENS["ops"].text, tls=False) as channel:
        for _ in range(2):
            with pytest.raises(PermissionDenied):
                channel.call(MetaQ.flush, pb.FlushLogRequest(), timeout_s=WAIT_S)
    assert "user ops from 127.0.0.1 may not send topic:*" in caplog.text


def test_joining_a_group_requires_permission_on_its_topics(call: Any) -> None:
    with pytest.raises(PermissionDenied, match=r'"receive topic:trades" to the list of consumer below .*/access.toml'):
        call("consumer", MetaQGroups.join, join(b"t" * 16, "billing", "orders", "trades"))
    with pytest.raises(PermissionDenied, match='add "receive group:billing" to the list of stranger'):
        call("stranger", MetaQGroups.join, join(b"t" * 16, "billing", "trades"))


def test_retries_and_dead_letters_are_readable_only_by_members_of_their_group(call: Any) -> None:
    for topic in ("%RETRY%billing", "%DLQ%billing"):
        ranges = pb.RangesRequest(queues=[pb.QueueSet(topic=topic)])
        call("consumer", MetaQ.ranges, ranges)
        with pytest.raises(PermissionDenied, match="describe group:billing"):
            call("stranger", MetaQ.ranges, ranges)
        with pytest.raises(PermissionDenied, match="receive group:billing"):
            call("ops", MetaQ.find, pb.FindInLogRequest(topic=topic, key="k"))


def test_waiting_fetch_ends_when_its_permission_is_revoked(place: tuple[str, Path], call: Any) -> None:
    address, file = place
    call("ops", MetaQ.set_topic, set_topic("orders"))
    wanted = pb.FetchRequest(
        wanted=[pb.QueueOffsets(topic="orders", queue=[0], offset=[0])], size_bytes_max=1000, wait_ms=60_000
    )

    def fetch() -> None:
        with BlockingChannel(address, token=TOKENS["consumer"].text, tls=False) as channel:
            list(channel.replies_with_data(MetaQ.fetch, wanted, timeout_s=WAIT_S))

    with ThreadPoolExecutor(1) as thread:
        fetching = thread.submit(fetch)
        until(lambda: call("ops", MetaQ.describe, pb.DescribeLogRequest()).waiting == 1)
        replace(file, file_of({**RULES, "consumer": ["receive group:billing"]}))
        with pytest.raises(PermissionDenied, match=r"topic:orders\" to the list of consumer .*may be done"):
            fetching.result(WAIT_S)
    replace(file, file_of(RULES))
    until(lambda: may_describe(call, "consumer", "orders"))


def may_describe(call: Any, user: str, topic: str) -> bool:
    try:
        call(user, MetaQ.show_topic, pb.LogTopicRequest(topic=topic))
    except PermissionDenied:
        return False
    return True


def test_invalid_users_file_changes_nothing_and_is_refused_at_start(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    with pytest.raises(MisuseError, match="cannot be read"):
        UsersOfFile(file)
    replace(file, file_of(RULES))
    users = UsersOfFile(file)
    before = users.guard.snapshot
    replace(file, "[users")
    users.look_once()
    assert users.guard.snapshot is before
    file.unlink()
    users.look_once()
    assert users.guard.snapshot is before
    replace(file, file_of({}))
    users.look_once()
    assert users.guard.snapshot.rules.all == ()


class NewerBroker:
    """A broker that reports an action unknown to this release."""

    def __getattr__(self, _: str) -> Any:
        return self.watch

    async def watch(self, request: WatchAccess) -> WatchedAccess:
        rules = [WatchedRule(subject="ada", action=action, kind="topic", pattern="*") for action in ("replay", "send")]
        return WatchedAccess(version=request.version + 1, rules=rules)


async def test_users_are_followed_despite_an_unreadable_token_or_unknown_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "log.token"
    token.write_text(new_token().text)
    monkeypatch.setenv("TXMSG_TOKEN_FILE", str(token))
    server = WireServer(
        Handlers({AccessWatch: NewerBroker()}, request_size_bytes_max=10_000), Shared(connections_max=10)
    )
    address = await server.bind("127.0.0.1:0")
    await server.start()
    users = UsersOfBrokers([address], age_s_max=60)
    token.unlink()
    following = asyncio.create_task(users.run())
    try:
        await until_async(lambda: following.done() or users.guard.snapshot.version > 1)
        assert not following.done(), following.exception()
        assert list(map(str, users.guard.snapshot.rules.all)) == ["ada send topic:*"]
    finally:
        following.cancel()
        await server.stop(0)
    with pytest.raises(MisuseError, match="cannot be read"):
        UsersOfBrokers([address], age_s_max=60)


async def test_brokers_are_followed_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "LOOK_S", 0)
    asked: list[str] = []
    goes_on = asyncio.Event()

    class Fails(UsersOfBrokers):
        async def follow(self, channel: Any, address: str) -> None:
            asked.append(address)
            if len(asked) == 1:
                raise RuntimeError("unexpected")
            goes_on.set()

    following = asyncio.create_task(Fails(["a:1", "b:1"], age_s_max=60).run())
    async with asyncio.timeout(60):
        await goes_on.wait()
    following.cancel()
    assert asked[:2] == ["a:1", "b:1"]


class RefusingBroker(NewerBroker):
    """A broker that reports no users."""

    def __init__(self, error: TxmsgError) -> None:
        self._error = error

    async def watch(self, _: WatchAccess) -> WatchedAccess:
        raise self._error


@pytest.mark.parametrize("error", [PermissionDenied("read cluster"), MisuseError("--auth"), BrokerUnavailable("away")])
async def test_configuration_errors_are_reported_before_a_server_starts(error: TxmsgError) -> None:
    server = WireServer(
        Handlers({AccessWatch: RefusingBroker(error)}, request_size_bytes_max=10_000), Shared(connections_max=10)
    )
    address = await server.bind("127.0.0.1:0")
    await server.start()
    users = UsersOfBrokers([address], age_s_max=60)
    try:
        with nullcontext() if isinstance(error, BrokerUnavailable) else pytest.raises(type(error), match=str(error)):
            await users.knock()
    finally:
        await server.stop(0)
    assert not users.guard.is_fresh


class TellingBroker(NewerBroker):
    """A broker that reports one user."""

    def __init__(self, user: str, version: int) -> None:
        self._told = WatchedAccess(version=version, users=[User(name=user)])

    async def watch(self, request: WatchAccess) -> WatchedAccess:
        if request.version == self._told.version:
            await asyncio.Event().wait()
        return self._told


async def test_server_follows_another_broker_and_refuses_all_clients_after_long_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txmsg.wire.users.LOOK_S", 0.01)
    now = 0.0
    servers = [
        WireServer(
            Handlers({AccessWatch: TellingBroker(user, version)}, request_size_bytes_max=10_000),
            Shared(connections_max=10),
        )
        for version, user in enumerate(("ann", "bert"), start=1)
    ]
    addresses = [await server.bind("127.0.0.1:0") for server in servers]
    for server in servers:
        await server.start()
    users = UsersOfBrokers(addresses, age_s_max=60, monotonic=lambda: now)
    following = asyncio.create_task(users.run())
    try:
        for server, user in zip(servers, ("ann", "bert"), strict=True):
            await until_async(lambda user=user: list(users.guard.snapshot.users) == [user])  # type: ignore[misc]
            if user == "bert":
                now = 61.0
            await server.stop(0)
        await until_async(lambda: not users.guard.snapshot.users)
        with pytest.raises(BrokerUnavailable, match="takes no new connections"):
            users.guard.authenticate(new_token().text, "", "peer")
        now = 0.0
        assert not users.guard.is_fresh, "what was forgotten is not known by the clock either"
        assert not following.done()
    finally:
        following.cancel()


def test_created_token_is_accepted(tmp_path: Path) -> None:
    made = json.loads(CliRunner().invoke(main, ["metaq", "token", "--json"]).output)
    replace(tmp_path / "access.toml", f'[users.ada]\ntokens = ["{made["entry"]}"]\n')
    guard = UsersOfFile(tmp_path / "access.toml").guard
    assert guard.authenticate(made["token"], "", "peer").name == "ada"


def test_message_rate_of_a_user_is_limited_at_a_server(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    replace(file, file_of(RULES))
    config = MetaQConfig(
        data_dir=tmp_path / "log", listen="127.0.0.1:0", access=file, user=UserConfig(messages_per_s=10)
    )
    token = TOKENS["producer"].text
    with served(config) as address, open_log(address, append=True, token=token, timeout_s=WAIT_S) as log:
        log.append([batch("orders", 0, 0, 1000)])
        with open_log(address, append=True, token=token, timeout_s=5) as another:
            told = until_told("10 messages/s are allowed", lambda: another.append([batch("orders", 0, 1000, 1)]))
        assert isinstance(told, Overloaded)


async def test_limits_of_users_are_followed_from_brokers() -> None:
    limited = User(name="shop", limits={"connections": 2, "topics": 1})
    guard = UsersOfBrokers([], UserLimits(requests_per_s=5), age_s_max=60).guard
    guard.use_snapshot(snapshot_of(WatchedAccess(version=1, users=[limited])))
    assert guard.limits_of("shop") == UserLimits(connections=2, topics=1, requests_per_s=5)


def test_users_are_read_from_a_file_or_from_brokers(tmp_path: Path) -> None:
    replace(tmp_path / "access.toml", "")
    with pytest.raises(MisuseError, match="not both"):
        MetaQConfig(data_dir=tmp_path, access=tmp_path / "access.toml", access_from="localhost:7700")
    with pytest.raises(TxmsgError, match="--access-from"):
        MetaQConfig(data_dir=tmp_path, access_from="localhost")
