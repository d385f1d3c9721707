"""TLS: the same calls, and refusals. Real certificates, of an authority created for the run."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.streams import answering
from tests.waiting import until_async
from tests.wire.certificates import Authority
from tests.wire.services import Answers, Echo, ask, serving
from txmsg.errors import BrokerUnavailable, MisuseError, UnknownTopic
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.channel import Channel
from txmsg.wire.frames import PREFACE
from txmsg.wire.server import WireServer
from txmsg.wire.shared import ConnectionLimits
from txmsg.wire.tls import ServerTls, TlsChoice, client_context

WAIT_S = 60.0
QUICK = ConnectionLimits(greeting_s=0.2, look_s=0.05)
Call = Callable[[str, TlsChoice, bytes], Awaitable[bytes]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that is not trusted."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(params=["asyncio", "blocking"])
def call(request: pytest.FixtureRequest) -> Call:
    """Make one call over a new channel, by either client; return the reply."""

    async def by_asyncio(address: str, tls: TlsChoice, content: bytes) -> bytes:
        async with Channel(address, tls=client_context(tls)) as channel:
            return (await channel.call(Echo.back, ask(content), timeout_s=WAIT_S)).held

    def by_thread(address: str, tls: TlsChoice, content: bytes) -> bytes:
        with BlockingChannel(address, tls=client_context(tls)) as channel:
            return channel.call(Echo.back, ask(content), timeout_s=WAIT_S).held

    async def blocking(address: str, tls: TlsChoice, content: bytes) -> bytes:
        return await asyncio.to_thread(by_thread, address, tls, content)

    return by_asyncio if request.param == "asyncio" else blocking


@asynccontextmanager
async def encrypted(
    authority: Authority, limits: ConnectionLimits = QUICK
) -> AsyncIterator[tuple[str, Answers, WireServer]]:
    async with serving(limits=limits, tls=authority.server()) as found:
        yield found


def with_certificate(authority: Authority, of: Authority) -> ssl.SSLContext:
    """Return the settings of a client that trusts one authority and has a certificate of the other."""
    context = client_context(authority.file)
    assert context is not None
    context.load_cert_chain(*of.issue("client@example.org", "client"))
    return context


@pytest.mark.parametrize("size", [0, 5, 200_000, 20_000_000])
async def test_message_of_any_size_round_trips(authority: Authority, call: Call, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with encrypted(authority, ConnectionLimits()) as (address, _, _):
        assert await call(address, authority.file, content) == content


async def test_no_plain_text_goes_over_the_network(authority: Authority, call: Call) -> None:
    seen = bytearray()
    async with encrypted(authority) as (address, _, _):
        host, port = address.split(":")

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to_server, from_server = await asyncio.open_connection(host, int(port))

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    seen.extend(data)
                    target.write(data)
                target.close()

            await asyncio.gather(copy(reader, from_server), copy(to_server, writer))

        async with answering(relay) as middle:
            assert await call(middle, authority.file, b"the secret word") == b"the secret word"
    assert seen
    for clear in (PREFACE, b"the secret word", b"Echo/Back"):
        assert clear not in seen


async def test_streams_and_errors_work_over_tls(authority: Authority) -> None:
    async with encrypted(authority) as (address, answers, _):
        async with Channel(address, tls=client_context(authority.file)) as channel:
            stream = await channel.stream(Echo.each, ask(b"0"), timeout_s=WAIT_S)
            for number in range(1, 50):
                await stream.send_request(ask(b"%d" % number * 5_000))
            for number in range(50):
                reply = await stream.receive()
                assert reply is not None
                assert reply.held[:2].startswith(str(number).encode()[:1])
            stream.close()
            with pytest.raises(UnknownTopic):
                await channel.call(Echo.refuse, ask(b""), timeout_s=WAIT_S)
            assert answers.begun == 0


async def test_threads_can_share_a_channel(authority: Authority) -> None:
    async with encrypted(authority, ConnectionLimits()) as (address, _, server):
        with BlockingChannel(address, tls=client_context(authority.file)) as channel, ThreadPoolExecutor(8) as threads:

            def one(number: int) -> bool:
                content = b"%d" % number * (1 if number % 10 else 50_000)
                return channel.call(Echo.back, ask(content), timeout_s=WAIT_S).held == content

            calls = [asyncio.wrap_future(threads.submit(one, number)) for number in range(400)]
            assert all(await asyncio.gather(*calls))
            assert len(server.shared.connections) == 1


async def test_server_certificate_of_another_authority_is_refused(
    authority: Authority, stranger: Authority, call: Call
) -> None:
    async with encrypted(stranger) as (address, answers, _):
        with pytest.raises(BrokerUnavailable, match=r"its certificate is refused: .*certificate"):
            await call(address, authority.file, b"x")
        assert answers.begun == 0


async def test_server_certificate_for_another_name_is_refused(authority: Authority, call: Call, tmp_path: Path) -> None:
    tls = Authority(tmp_path / "other")
    async with serving(tls=tls.server("other.example.org")) as (address, answers, _):
        with pytest.raises(BrokerUnavailable, match=r"refused: .*127\.0\.0\.1"):
            await call(address, tls.file, b"x")
        assert answers.begun == 0


async def test_client_without_tls_gets_an_error_that_the_server_requires_it(authority: Authority, call: Call) -> None:
    async with encrypted(authority) as (address, answers, server):
        with pytest.raises(BrokerUnavailable, match="it speaks TLS only: set TXMSG_TLS_CA"):
            await call(address, False, b"x")
        await until_async(lambda: not server.shared.connections)
        assert answers.begun == 0


async def test_client_with_tls_gets_an_error_that_the_server_has_none(authority: Authority, call: Call) -> None:
    async with serving() as (address, answers, _):
        with pytest.raises(BrokerUnavailable, match=r"it does not speak TLS"):
            await call(address, authority.file, b"x")
        assert answers.begun == 0


async def test_client_certificate_of_the_configured_authority_is_required(
    authority: Authority, stranger: Authority, call: Call
) -> None:
    async with serving(tls=authority.server(client_ca=authority.file)) as (address, answers, _):
        assert await call(address, with_certificate(authority, authority), b"known") == b"known"
        for tls in (authority.file, with_certificate(authority, stranger)):
            with pytest.raises(BrokerUnavailable):
                await call(address, tls, b"x")
        assert answers.begun == 1


@pytest.mark.parametrize(
    "said", [b"", b"\x16\x03\x01", b"\x16\x03\x01\xff\xff" + b"x" * 500, b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_unfinished_handshake_is_disconnected(authority: Authority, said: bytes) -> None:
    async with encrypted(authority) as (address, _, server):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        with suppress(ConnectionResetError):  # if it comes when the server has closed
            while await reader.read(4096):
                pass
        writer.close()
        await until_async(lambda: not server.shared.connections)


async def test_new_certificate_is_used_without_a_restart_and_connections_stay_open(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuing = Authority(tmp_path / "issuing")
    async with serving(limits=QUICK, tls=issuing.server()) as (address, _, _):
        before = client_context(issuing.file)
        async with Channel(address, tls=before) as channel:
            await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
            (tmp_path / "issuing/server.key").write_text("half a key")
            await until_async(lambda: "cannot be used" in caplog.text)
            async with Channel(address, tls=before) as another:
                await another.call(Echo.back, ask(), timeout_s=WAIT_S)
            successor = Authority(tmp_path / "issuing")  # writes into the same files
            with caplog.at_level(logging.INFO):
                successor.issue("127.0.0.1")
                await until_async(lambda: "is read again" in caplog.text)
            async with Channel(address, tls=client_context(successor.file)) as new:
                await new.call(Echo.back, ask(), timeout_s=WAIT_S)
            assert (await channel.call(Echo.back, ask(b"old"), timeout_s=WAIT_S)).held == b"old"


def test_unusable_certificate_files_are_named(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("127.0.0.1", "sound")
    _, other_key = stranger.issue("127.0.0.1", "other")
    missing = tmp_path / "missing.pem"
    for wrong in ((missing, key), (certificate, missing), (certificate, other_key), (key, key)):
        with pytest.raises(MisuseError, match="cannot be used as certificate and key"):
            ServerTls(*wrong)
    with pytest.raises(MisuseError, match="is not a file with certificates"):
        ServerTls(certificate, key, missing)
    with pytest.raises(MisuseError, match="is not a file with certificates"):
        client_context(missing)
    with pytest.raises(MisuseError, match="tls 5 is not True, False, a file"):
        client_context(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_away", [False, True])
def test_certificate_with_unreadable_expiry_does_not_replace_the_current_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    certificate, key = Authority(tmp_path / "issuing").issue("127.0.0.1")
    served = ServerTls(certificate, key)
    before = served.context
    trusted = certificate.read_text().replace(" CERTIFICATE-", " TRUSTED CERTIFICATE-")  # OpenSSL accepts it
    certificate.write_text(trusted)
    if is_away:  # by now: OpenSSL has just read it

        def read_bytes(path: Path) -> bytes:
            raise FileNotFoundError(2, "No such file or directory", str(path))

        monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(MisuseError, match=r"server\.pem.*is not known until when it is valid"):
        ServerTls(certificate, key)
    served.renew()
    assert "was changed and cannot be used, the one before stays" in caplog.text
    assert served.context is before


@pytest.mark.parametrize(
    ("valid_s", "begins_s", "said"),
    [(-60, None, "it has expired at"), (7200, 3600, "it is valid from .* on; it is used then")],
    ids=["expired", "not valid yet"],
)
def test_invalid_certificate_does_not_replace_a_valid_one(  # noqa: PLR0917
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    valid_s: float,
    begins_s: float | None,
    said: str,
) -> None:
    served = authority.server()
    before, remaining_s = served.context, served.remaining_s()
    authority.issue("127.0.0.1", valid_s=valid_s, begins_s=begins_s)
    served.renew()
    served.renew()
    assert served.context is before
    assert remaining_s - 3600 < served.remaining_s() <= remaining_s, "the figure is that of the certificate in use"
    [message] = caplog.messages
    assert re.search(rf"server\.pem was changed and cannot be used, the one before stays: {said}", message)
    if begins_s is not None:
        later = time.time() + begins_s + 1
        monkeypatch.setattr(time, "time", lambda: later)
        served.renew()
        assert served.context is not before


def test_a_key_of_another_certificate_does_not_replace_the_pair_in_use(
    authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.issue("127.0.0.1")
    served = ServerTls(certificate, key)
    before = served.context
    key.write_bytes(stranger.issue("127.0.0.1", "other")[1].read_bytes())
    served.renew()
    assert served.context is before
    assert "the one before stays" in caplog.text


def test_ciphers_without_authentication_are_not_offered(authority: Authority) -> None:
    for context in (client_context(True), authority.server().context, authority.server().for_web(["h2"])):
        assert context is not None
        ciphers = {str(each["name"]) for each in context.get_ciphers()}
        assert {name for name in ciphers if not re.search("GCM|CHACHA20|CCM", name)} == set()
        assert "ECDHE-RSA-AES128-GCM-SHA256" in ciphers


async def test_client_with_only_cbc_ciphers_is_refused(authority: Authority) -> None:
    async with serving(tls=authority.server()) as (address, _, _):
        context = ssl.create_default_context(cafile=authority.file)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE-RSA-AES128-SHA256:ECDHE-ECDSA-AES128-SHA256")
        with pytest.raises(BrokerUnavailable):
            async with Channel(address, tls=context) as channel:
                await channel.call(Echo.back, ask(), timeout_s=WAIT_S)


def test_soon_expiring_certificate_is_logged_once_a_day(
    authority: Authority, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    fine = authority.server()
    fine.renew()
    assert fine.remaining_s() > 86400 * 300
    assert not caplog.messages
    soon = ServerTls(*Authority(tmp_path / "soon").issue("127.0.0.1", valid_s=5 * 86400))
    for _ in range(3):
        soon.renew()
    [message] = caplog.messages
    assert "expires in 5.0 days" in message


def test_old_versions_of_tls_are_refused(authority: Authority) -> None:
    for context in (client_context(True), client_context(authority.file), authority.server().context):
        assert context is not None
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
