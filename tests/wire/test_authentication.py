"""Authentication by a server: both kinds of client, tokens and certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.waiting import until_async
from tests.wire.certificates import Authority
from tests.wire.services import Answers, Echo, ask, serving
from txmsg.errors import BrokerUnavailable, MisuseError, PermissionDenied, Unauthenticated
from txmsg.settings.common import TlsConfig
from txmsg.wire.access.guard import Guard
from txmsg.wire.access.permissions import PERMISSIONS, Need
from txmsg.wire.access.rules import ADMIN, RIGHTS, Rule, RuleSet
from txmsg.wire.access.snapshot import AccessSnapshot, Credential, User
from txmsg.wire.access.tokens import NewToken, new_token
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.channel import Channel
from txmsg.wire.connection import greeting
from txmsg.wire.credential import TokenChoice
from txmsg.wire.frames import LAST, FrameReader, WireFrameKind, call_head, frame_of
from txmsg.wire.handlers import Handlers
from txmsg.wire.method import methods_of
from txmsg.wire.server import WireServer
from txmsg.wire.shared import ConnectionLimits, Shared
from txmsg.wire.tls import TlsChoice, client_context

WAIT_S = 60.0
[DESCRIBE_CLUSTER] = [right for right in RIGHTS if right == ("describe", "cluster")]
QUICK = ConnectionLimits(greeting_s=0.2, look_s=0.02)


async def call_async(address: str, token: TokenChoice, tls: TlsChoice = False) -> bytes:
    """Make one call by the asyncio client."""
    async with Channel(address, token=token, tls=tls) as channel:
        return (await channel.call(Echo.back, ask(b"x"), timeout_s=WAIT_S)).held


async def call_blocking(address: str, token: TokenChoice, tls: TlsChoice = False) -> bytes:
    """Make one call by the blocking client."""

    def call() -> bytes:
        with BlockingChannel(address, token=token, tls=tls) as channel:
            return channel.call(Echo.back, ask(b"x"), timeout_s=WAIT_S).held

    return await asyncio.to_thread(call)


CALLS = pytest.mark.parametrize("call", [call_async, call_blocking])
Call = Callable[..., Awaitable[bytes]]


class Users:
    """A guard whose users change as a test says. `now` is its clock, and `age_s` the age of its snapshot."""

    def __init__(self) -> None:
        self.now = 0.0
        self.age = 0.0
        self.guard = Guard(age_s_max=60, clock=lambda: self.now, monotonic=lambda: self.age)
        self.users: dict[str, User] = {}
        self.credentials: dict[str, Credential] = {}
        self.rules: list[Rule] = []
        self.use()

    def add(self, name: str, *roles: str, expires_at: float = 100.0, certificate: str = "") -> NewToken:
        token = new_token()
        self.users[name] = User(name=name, roles=frozenset(roles), certificate=certificate)
        self.credentials[token.id] = Credential(
            id=token.id, user=name, secret_sha256=token.secret_sha256, expires_at=expires_at
        )
        self.use()
        return token

    def revoke(self, token: NewToken) -> None:
        del self.credentials[token.id]
        self.use()

    def use(self) -> None:
        self.guard.use_snapshot(
            AccessSnapshot(users=dict(self.users), credentials=dict(self.credentials), rules=RuleSet(self.rules))
        )


@pytest.fixture(autouse=True)
def permissions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add entries of this service to the permissions table, as every service has."""
    for method in methods_of(Echo).values():
        monkeypatch.setitem(PERMISSIONS, method.name, (Need(DESCRIBE_CLUSTER),))


@pytest.fixture
def users() -> Users:
    return Users()


@CALLS
async def test_valid_token_is_accepted(users: Users, call: Call, tmp_path: Path) -> None:
    token = users.add("anna", ADMIN).text
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    async with serving(guard=users.guard) as (address, _, _):
        for choice in (token, file, lambda: token):
            assert await call(address, choice) == b"x"


@CALLS
async def test_token_is_read_from_the_environment(
    users: Users, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = users.add("anna", ADMIN).text
    (tmp_path / "token").write_text(token)
    async with serving(guard=users.guard) as (address, _, _):
        monkeypatch.setenv("TXMSG_TOKEN", token)
        assert await call(address, None) == b"x"
        with pytest.raises(Unauthenticated):
            await call(address, "")
        monkeypatch.setenv("TXMSG_TOKEN", new_token().text)
        monkeypatch.setenv("TXMSG_TOKEN_FILE", str(tmp_path / "token"))
        assert await call(address, None) == b"x"


@CALLS
async def test_invalid_credentials_are_refused_without_revealing_users(users: Users, call: Call) -> None:
    right, expired, revoked = users.add("anna", ADMIN), users.add("ben", expires_at=0.0), users.add("carl")
    users.revoke(revoked)
    wrong = right.text[:-1] + ("a" if right.text[-1] != "a" else "b")
    told = set()
    async with serving(guard=users.guard) as (address, answers, server):
        for token in (wrong, expired.text, revoked.text, new_token().text):
            with pytest.raises(Unauthenticated) as caught:
                await call(address, token)
            told.add(str(caught.value))
            assert token.split("_")[2] not in str(caught.value)
        with pytest.raises(Unauthenticated, match="requires authentication: give token="):
            await call(address, "")
        assert answers.begun == server.shared.calls_begun == 0
    assert len(told) == 1


async def test_call_sent_before_authentication_is_not_executed(users: Users) -> None:
    request = frame_of(WireFrameKind.CALL, LAST, 1, call_head(b"Echo/Back", 0) + ask().SerializeToString())
    async with serving(guard=users.guard, limits=QUICK) as (address, answers, server):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(greeting(token=new_token().text) + request)
        frames = FrameReader().feed(await reader.read())
        assert [frame.kind for frame in frames] == [WireFrameKind.HELLO, WireFrameKind.GOAWAY]
        writer.write(request)
        await until_async(lambda: not server.shared.connections)  # although this client never closes
        assert answers.begun == 0
        writer.close()


async def test_a_revoked_token_ends_its_connections_and_no_others(users: Users) -> None:
    anna, ben = users.add("anna", ADMIN), users.add("ben", ADMIN)
    async with (
        serving(guard=users.guard) as (address, answers, _),
        Channel(address, token=anna.text) as of_anna,
        Channel(address, token=ben.text) as of_ben,
    ):
        waiting = asyncio.create_task(of_anna.call(Echo.wait, ask(), timeout_s=WAIT_S))
        await of_ben.call(Echo.back, ask(), timeout_s=WAIT_S)
        await until_async(lambda: answers.begun == 2)
        users.revoke(anna)
        await until_async(waiting.done)
        assert answers.cancelled == 1
        with pytest.raises(Unauthenticated):
            await of_anna.call(Echo.back, ask(), timeout_s=WAIT_S)
        assert await of_ben.call(Echo.back, ask(), timeout_s=WAIT_S)


async def test_a_token_that_expires_ends_its_connections(users: Users) -> None:
    anna = users.add("anna", ADMIN, expires_at=10.0)
    async with (
        serving(guard=users.guard, limits=QUICK) as (address, _, server),
        Channel(address, token=anna.text) as channel,
    ):
        await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
        users.now = 10.0
        await until_async(lambda: not server.shared.connections)
        with pytest.raises(Unauthenticated):
            await channel.call(Echo.back, ask(), timeout_s=WAIT_S)


async def test_a_rotated_token_is_read_from_its_file_without_a_restart(users: Users, tmp_path: Path) -> None:
    old, new, file = users.add("anna", ADMIN), users.add("anna", ADMIN), tmp_path / "token"
    file.write_text(old.text)
    async with serving(guard=users.guard) as (address, _, _), Channel(address, token=file) as channel:
        assert await _takes(channel)
        file.write_text(new.text)
        users.revoke(old)
        with pytest.raises(BrokerUnavailable, match="is not valid any more"):  # an error that clients retry
            await _takes(channel)
        assert await _takes(channel)
        file.unlink()  # while it is replaced, the one before is used
        users.guard.on_change()
        assert await _takes(channel)


async def _takes(channel: Channel) -> bool:
    return bool((await channel.call(Echo.back, ask(), timeout_s=WAIT_S)).held)


@CALLS
async def test_call_requires_a_current_rule_and_a_removed_rule_counts_at_once(users: Users, call: Call) -> None:
    token, other = users.add("anna", "ops"), users.add("ben")
    users.rules = [Rule("role:ops", *DESCRIBE_CLUSTER, "*")]
    users.use()
    denied: list[tuple[str, str, str]] = []
    users.guard.on_denied = lambda *what: denied.append(what)
    async with serving(guard=users.guard) as (address, answers, _), Channel(address, token=token.text) as before:
        assert await call(address, token.text) == b"x"
        assert await _takes(before)
        with pytest.raises(PermissionDenied, match="user ben may not describe cluster: allow it with"):
            await call(address, other.text)
        assert answers.begun == 2
        users.rules = []
        users.use()
        with pytest.raises(PermissionDenied):
            await _takes(before)
        assert answers.begun == 2
    assert denied == [(user, "127.0.0.1", "describe cluster") for user in ("ben", "anna")]


@CALLS
async def test_server_with_outdated_users_refuses_new_connections(users: Users, call: Call) -> None:
    token = users.add("anna", ADMIN)
    async with serving(guard=users.guard) as (address, _, _), Channel(address, token=token.text) as before:
        assert await _takes(before)
        users.age = 61.0
        assert await _takes(before)
        with pytest.raises(BrokerUnavailable, match="whether users have changed"):
            await call(address, token.text)
        users.guard.confirm()
        assert await call(address, token.text) == b"x"


@CALLS
async def test_token_is_not_sent_over_an_unencrypted_connection(
    users: Users, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = users.add("anna", ADMIN)
    monkeypatch.setattr("txmsg.wire.credential.is_loopback", lambda host: False)
    async with serving(guard=users.guard) as (address, _, server):
        with pytest.raises(MisuseError, match=r"is not sent to 127\.0\.0\.1 without TLS") as caught:
            await call(address, token.text)
        assert server.shared.traffic.received_bytes == 0
        assert token.text not in str(caught.value)


@CALLS
async def test_client_certificate_authenticates_only_its_user(users: Users, call: Call, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    users.add("anna", ADMIN, certificate="anna.example.org")
    server_tls = authority.server(client_ca=authority.file)
    async with serving(guard=users.guard, tls=server_tls) as (address, _, _):
        for name in ("anna.example.org", "eve.example.org"):
            context = client_context(authority.file)
            assert context is not None
            context.load_cert_chain(*authority.issue(name, "client"))
            if name.startswith("anna"):
                assert await call(address, "", context) == b"x"
            else:
                with pytest.raises(Unauthenticated, match="no user has this client certificate"):
                    await call(address, "", context)


async def test_a_handler_knows_the_principal() -> None:
    users, seen = Users(), []
    token = users.add("anna", ADMIN)

    class Watched(Answers):
        async def each(self, call: object) -> None:
            seen.append(call.connection.principal)  # type: ignore[attr-defined]

    server = WireServer(Handlers({Echo: Watched()}), Shared(connections_max=5, guard=users.guard))
    address = await server.bind("127.0.0.1:0")
    await server.start()
    try:
        async with Channel(address, token=token.text) as channel:
            stream = await channel.stream(Echo.each, ask(), timeout_s=WAIT_S)
            await stream.receive()
    finally:
        await server.stop(0)
    assert [(each.name, each.credential) for each in seen] == [("anna", token.id)]


def test_malformed_token_is_refused_and_not_echoed() -> None:
    with pytest.raises(MisuseError) as caught:
        Channel("localhost:1", token="/var/run/hunter2")
    assert "hunter2" not in str(caught.value)
    assert "pathlib.Path" in str(caught.value)


def test_public_server_requires_tls_with_tokens_or_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("127.0.0.1")
    listen, tls = "0.0.0.0:7700", TlsConfig(cert=certificate, key=key)
    for wrong, authentication in ((TlsConfig(), True), (tls, False)):
        with pytest.raises(MisuseError, match="--tls-cert and --tls-key"):
            wrong.check_listen(listen, authentication=authentication, insecure=False)
    tls.check_listen(listen, authentication=True, insecure=False)
    TlsConfig(cert=certificate, key=key, client_ca=authority.file).check_listen(
        listen, authentication=False, insecure=False
    )
