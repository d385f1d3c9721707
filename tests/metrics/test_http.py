"""The endpoint on a real socket: its answers, refused clients, and limits per client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.waiting import until_async
from tests.wire.certificates import Authority
from txmsg.errors import InvalidName, MisuseError
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.metrics.http import BearerToken, Endpoint, EndpointLimits, Probes, serving_on_thread
from txmsg.ops.cli.main import main
from txmsg.settings.common import TlsConfig
from txmsg.wire.address import host_and_port
from txmsg.wire.table import SAY_AGAIN_S
from txmsg.wire.tls import client_context

TOKEN = "a token of this test"
LIMITS = EndpointLimits(connections=3, head_size_bytes=1024, request_s=0.2, answer_s=0.5)
WITHIN_S = 30.0


async def figures() -> Figures:
    return Figures(ExportingProcess.PAGE)


PROBES = Probes(figures=figures, unready=lambda: "")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file with a token."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@asynccontextmanager
async def endpoint(probes: Probes | None = None, limits: EndpointLimits = LIMITS) -> AsyncIterator[str]:
    made = Endpoint(probes or PROBES, limits)
    address = await made.start("127.0.0.1:0")
    try:
        yield address
    finally:
        await made.close()


async def said(address: str, request: bytes, tls: ssl.SSLContext | None = None) -> str:
    """Return everything sent until the server closes."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(WITHIN_S):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
        with contextlib.closing(writer):
            writer.write(request)
            with contextlib.suppress(ConnectionError):
                return (await reader.read()).decode(errors="replace")
    return ""


def get(path: str, host: str = "localhost", method: str = "GET", *fields: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *fields, "", ""]).encode()


async def status_of(address: str, request: bytes) -> int:
    line = (await said(address, request)).partition("\r\n")[0]
    return int(line.split()[1]) if line else 0


async def test_only_the_three_pages_are_served() -> None:
    async with endpoint() as address:
        metrics = await said(address, get("/metrics"))
        assert metrics.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n")
        head, _, body = metrics.partition("\r\n\r\n")
        assert f"Content-Length: {len(body)}" in head
        assert "# TYPE txmsg_build_info gauge\n" in body
        assert (await said(address, get("/livez"))).endswith("\r\n\r\nok\n")
        assert (await said(address, get("/readyz?verbose"))).endswith("\r\n\r\nok\n")
        assert await status_of(address, get("/")) == 404
        assert (await said(address, get("/metrics", method="HEAD"))).endswith("\r\n\r\n")


async def test_process_that_is_not_ready_or_not_alive_reports_the_reason() -> None:
    probes = Probes(figures=figures, unready=lambda: "the database\nis away", dead=lambda: "stuck")
    async with endpoint(probes) as address:
        ready = await said(address, get("/readyz"))
        assert ready.startswith("HTTP/1.1 503 ")
        assert ready.endswith("\r\n\r\nthe database\\nis away\n")
        assert (await said(address, get("/livez"))).endswith("\r\n\r\nstuck\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/metrics", host="example.org"), 421),
        (get("/metrics", host="127.0.0.1.example.org"), 421),
        (get("/metrics", host="10.0.0.1:9100"), 421),
        (get("/metrics", host="127.0.0.1:80.example.org"), 421),
        (get("/metrics", "localhost", "GET", "Host: localhost"), 421),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 421),
        (get("/metrics", host="LOCALHOST:80"), 200),
        (get("/metrics", host="[::1]:80"), 200),
        (get("/metrics", host="127.0.0.1"), 200),
        (get("/metrics", method="POST"), 405),
        (get("/metrics", "localhost", "GET", "Content-Length: 5"), 413),
        (get("/metrics", "localhost", "GET", "Transfer-Encoding: chunked"), 413),
        (get("/" + "x" * 2000), 431),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (get("/metrics", "localhost", "GET", ": no name"), 400),
    ],
)
async def test_only_plain_requests_to_localhost_are_answered(request_bytes: bytes, status: int) -> None:
    async with endpoint() as address:
        assert await status_of(address, request_bytes) == status
        assert await status_of(address, get("/livez")) == 200


async def test_client_that_sends_slowly_or_nothing_is_disconnected() -> None:
    async with endpoint() as address:
        assert await said(address, b"") == ""
        assert await said(address, b"GET /metrics HTTP/1.1\r\nHost: loc") == ""


async def test_client_that_reads_nothing_is_disconnected() -> None:
    async with endpoint() as address:
        host, _, port = address.rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(LIMITS.connections)]
        for _, writer in held:
            writer.write(get("/metrics"))
        async with asyncio.timeout(WITHIN_S):
            while await status_of(address, get("/livez")) != 200:  # all places are taken until then
                pass
        for _, writer in held:
            writer.close()


PATIENT = EndpointLimits(first_byte_s=9 * WITHIN_S, request_s=9 * WITHIN_S)
"""Limits with which silent clients are not disconnected in a test."""


async def test_idle_and_unfinished_connections_do_not_block_others(caplog: pytest.LogCaptureFixture) -> None:
    async with endpoint(limits=PATIENT) as address, AsyncExitStack() as stack:
        for number in range(3 * PATIENT.connections):
            held = stack.enter_context(socket.create_connection(host_and_port(address)))
            held.sendall(b"" if number % 2 else b"GET /metrics HTTP/1.1\r\n")
            if not number % 32:
                for path in ("/livez", "/readyz", "/metrics"):
                    assert await status_of(address, get(path)) == 200
    assert sum("the endpoint of /metrics has no room" in record.getMessage() for record in caplog.records) == 1


def test_probes_of_a_process_without_a_loop_are_answered_beside_idle_connections() -> None:
    """As an agent, a tailer and a worker serve them."""
    with serving_on_thread("127.0.0.1:0", PROBES) as address, ExitStack() as stack:
        for number in range(100):
            stack.enter_context(socket.create_connection(host_and_port(address)))
            if not number % 20:
                assert asyncio.run(status_of(address, get("/livez"))) == 200


async def test_scrapers_that_do_not_read_leave_room_for_probes() -> None:
    go_on = asyncio.Event()

    async def slow() -> Figures:
        await go_on.wait()
        return Figures(ExportingProcess.PAGE)

    limits = EndpointLimits(connections=8, scrapes=4, answer_s=9 * WITHIN_S)
    made = Endpoint(Probes(figures=slow, unready=lambda: ""), limits)
    address = await made.start("127.0.0.1:0")
    try:
        async with asyncio.TaskGroup() as scraping:
            statuses = [scraping.create_task(status_of(address, get("/metrics"))) for _ in range(4)]
            await until_async(lambda: made.scrapes == 4)
            assert await status_of(address, get("/metrics")) == 503
            for _ in range(20):
                assert await status_of(address, get("/livez")) == 200
            go_on.set()
        assert [status.result() for status in statuses] == [200] * 4
    finally:
        await made.close()


async def test_scrapers_that_do_not_read_do_not_block_other_scrapers() -> None:
    limits = EndpointLimits(connections=16, scrapes=4, answer_s=9 * WITHIN_S)
    made = Endpoint(PROBES, limits)
    made._text_of = lambda figures: bytes(50_000_000)
    address = await made.start("127.0.0.1:0")
    try:
        with ExitStack() as stack:
            for _ in range(4):
                held = stack.enter_context(socket.create_connection(host_and_port(address)))
                held.sendall(get("/metrics"))
                async with asyncio.timeout(WITHIN_S):
                    await asyncio.get_running_loop().sock_recv(nonblocking(held), 1)  # its answer has begun
            assert made.scrapes == 0
            assert await status_of(address, get("/metrics", method="HEAD")) == 200
            assert made._table.known == 0
    finally:
        await made.close()


def nonblocking(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock


async def test_number_of_closed_connections_is_logged_a_minute_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    made = Endpoint(PROBES, EndpointLimits(connections=1, first_byte_s=WITHIN_S, look_s=0.01), clock=lambda: now)
    address = await made.start("127.0.0.1:0")
    try:
        with ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(socket.create_connection(host_and_port(address)))
            await until_async(lambda: made._table.closed.total() == 2)
            now = SAY_AGAIN_S
            await until_async(lambda: not made._table.closed)
    finally:
        await made.close()
    assert "2 were closed" in caplog.records[-1].getMessage()


async def test_concurrent_scrapes_share_one_reading() -> None:
    readings = 0
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> Figures:
        nonlocal readings
        readings += 1
        begun.set()
        await go_on.wait()
        return Figures(ExportingProcess.PAGE)

    limits = EndpointLimits(answer_s=WITHIN_S)
    async with endpoint(Probes(figures=slow, unready=lambda: ""), limits) as address:
        scrapes = [asyncio.create_task(status_of(address, get("/metrics"))) for _ in range(5)]
        await begun.wait()
        assert await status_of(address, get("/livez")) == 200  # which waits for none of them
        go_on.set()
        assert await asyncio.gather(*scrapes) == [200] * 5
        assert readings <= 2  # a second one for late requests


async def test_failing_or_slow_metrics_get_an_error_response() -> None:
    async def fails() -> Figures:
        raise ValueError("of the test")

    async def hangs() -> Figures:
        await asyncio.Event().wait()
        raise AssertionError

    async with endpoint(Probes(figures=fails, unready=lambda: "")) as address:
        assert await status_of(address, get("/metrics")) == 500
        assert await status_of(address, get("/livez")) == 200
    async with endpoint(Probes(figures=hangs, unready=lambda: "")) as address:
        assert await status_of(address, get("/metrics")) == 503


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0", "localhost:0", "127.0.0.9:9100", "[::1]:9100"])
def test_localhost_address_is_accepted(listen: str) -> None:
    TlsConfig().check_http_listen(listen, None, insecure=False)


@pytest.mark.parametrize("listen", ["0.0.0.0:9100", "[::]:9100", "10.0.0.1:9100", "example.org:9100", "broker-1:9100"])
def test_public_address_requires_tls_and_authentication(listen: str, secret: Path, authority: Authority) -> None:
    certificate, key = authority.issue("127.0.0.1")
    encrypted = TlsConfig(cert=certificate, key=key)
    proving = TlsConfig(cert=certificate, key=key, client_ca=authority.file)
    for tls, token_file in ((TlsConfig(), None), (TlsConfig(), secret), (encrypted, None)):
        with pytest.raises(
            MisuseError, match=r"from other machines, and every client that reaches it can read all metrics: give --tls"
        ):
            tls.check_http_listen(listen, token_file, insecure=False)
        tls.check_http_listen(listen, token_file, insecure=True)
    encrypted.check_http_listen(listen, secret, insecure=False)
    proving.check_http_listen(listen, None, insecure=False)


@pytest.mark.parametrize("listen", ["9100", "localhost", "http://localhost:9100"])
def test_invalid_listen_address_is_refused(listen: str) -> None:
    with pytest.raises(InvalidName, match="is not of the form HOST:PORT"):
        TlsConfig().check_http_listen(listen, None, insecure=False)


@pytest.mark.parametrize("content", [None, "", "short", "a word with an ä in it"])
def test_file_without_a_token_is_refused(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(MisuseError, match=r"--http-token-file .*token"):
        TlsConfig().check_http_listen("", file, insecure=False)


# ---- access


async def test_metrics_require_the_token_and_probes_do_not(secret: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Endpoint(PROBES, LIMITS, token=BearerToken(secret))
    address = await made.start("127.0.0.1:0")
    try:
        for wrong in (
            [],
            ["Authorization: Bearer"],
            [f"Authorization: Bearer {TOKEN}x"],
            [f"Authorization: Basic {TOKEN}"],
            ["Authorization: Bearer \xe4\u20ac"],
        ):
            answer = await said(address, get("/metrics", "localhost", "GET", *wrong))
            assert answer.startswith("HTTP/1.1 401 ")
            assert "\r\nWWW-Authenticate: Bearer\r\n" in answer
            assert "txmsg_build_info" not in answer
        assert await status_of(address, get("/livez")) == await status_of(address, get("/readyz")) == 200
        right = get("/metrics", "localhost", "GET", f"Authorization: bearer {TOKEN}")
        assert await status_of(address, right) == 200
        secret.write_text("another token, from now on\n")
        assert await status_of(address, right) == 401
        secret.unlink()
        assert await status_of(address, right) == await status_of(address, right) == 401
        assert caplog.text.count("/metrics refuses all requests") == 1
        assert TOKEN not in caplog.text
    finally:
        await made.close()


async def test_client_certificate_is_required_for_metrics_but_not_for_probes(authority: Authority) -> None:
    made = Endpoint(PROBES, EndpointLimits(), tls=authority.server(client_ca=authority.file))
    address = await made.start("127.0.0.1:0")
    known = client_context(authority.file)
    assert known is not None
    known.load_cert_chain(*authority.issue("scraper@example.org", "scraper"))
    try:
        stranger = client_context(authority.file)
        assert "txmsg_tls_certificate_remaining_seconds 3.1" in await said(address, get("/metrics"), known)
        assert (await said(address, get("/metrics"), stranger)).startswith("HTTP/1.1 401 ")
        assert (await said(address, get("/livez"), stranger)).endswith("\r\n\r\nok\n")
        assert "HTTP" not in await said(address, get("/livez"))  # without TLS there is no answer
        assert await asked(address) == (0, "ok")
    finally:
        await made.close()


async def test_reason_for_not_ready_is_shown_only_locally_or_with_access_to_metrics(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reason names directories, hosts and databases."""
    probes = Probes(figures=figures, unready=lambda: "/var/lib/log is full", dead=lambda: "db.internal hangs")
    made = Endpoint(probes, EndpointLimits(), token=BearerToken(secret))
    address = await made.start("127.0.0.1:0")
    right = f"Authorization: Bearer {TOKEN}"
    try:
        assert (await said(address, get("/readyz"))).endswith("\r\n\r\n/var/lib/log is full\n")
        monkeypatch.setattr("txmsg.wire.table.network_of", lambda _: "192.0.2.1")
        assert (await said(address, get("/readyz", "localhost", "GET", right))).endswith("/var/lib/log is full\n")
        for path, reason in (("/readyz", "/var/lib"), ("/livez", "db.internal")):
            answer = await said(address, get(path))
            assert answer.startswith("HTTP/1.1 503 ")
            assert reason not in answer
            assert "the log of the process says why" in answer
    finally:
        await made.close()


async def test_replaced_certificate_is_used_at_once(tmp_path: Path) -> None:
    issuing = Authority(tmp_path / "issuing")
    made = Endpoint(PROBES, EndpointLimits(), tls=issuing.server())
    address = await made.start("127.0.0.1:0")
    try:
        before = client_context(issuing.file)
        assert (await said(address, get("/livez"), before)).endswith("ok\n")
        issuing = Authority(tmp_path / "issuing")
        issuing.issue("127.0.0.1")
        with pytest.raises(ssl.SSLCertVerificationError):
            await said(address, get("/livez"), before)
        assert (await said(address, get("/livez"), client_context(issuing.file))).endswith("ok\n")
    finally:
        await made.close()


async def test_handshake_counts_as_a_connection_and_has_a_timeout(authority: Authority) -> None:
    made = Endpoint(PROBES, LIMITS, tls=authority.server())
    address = await made.start("127.0.0.1:0")
    try:
        assert await said(address, b"\x16\x03\x01") == ""
    finally:
        await made.close()


async def test_port_in_use_is_named() -> None:
    async with endpoint() as address:
        other = Endpoint(Probes(figures=figures, unready=lambda: ""))
        with pytest.raises(MisuseError, match=f"cannot listen on {address} .*another --http-listen"):
            await other.start(address)
        await other.close()


async def test_close_ends_requests_in_progress() -> None:
    begun = asyncio.Event()

    async def hangs() -> Figures:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    made = Endpoint(Probes(figures=hangs, unready=lambda: ""))
    address = await made.start("127.0.0.1:0")
    scrape = asyncio.create_task(said(address, get("/metrics")))
    await begun.wait()
    async with asyncio.timeout(WITHIN_S):
        await made.close()
        await made.close()
        assert await scrape == ""


async def asked(*words: str) -> tuple[int, str]:
    """Return exit status and output of `txmsg health`."""
    result = await asyncio.to_thread(CliRunner().invoke, main, ["health", *words])
    return result.exit_code, result.output.strip()


async def test_health_command_prints_the_answers_of_the_probes() -> None:
    trouble = ["", ""]
    probes = Probes(figures=figures, unready=lambda: trouble[0], dead=lambda: trouble[1])
    async with endpoint(probes) as address:
        assert await asked(address) == (0, "ok")
        trouble[0] = "it holds no leases"
        assert await asked(address) == (1, "it holds no leases")
        assert await asked(address, "--alive") == (0, "ok")
        trouble[1] = "its loop hangs"
        assert await asked(address, "--alive") == (1, "its loop hangs")
        told = json.dumps({"address": address, "ok": False, "answer": "its loop hangs"})
        assert await asked(address, "--alive", "--json") == (1, told)
    status, told = await asked(address)
    assert (status, told.startswith(f"Error: no answer at {address} (")) == (1, True)


async def test_health_command_has_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        status, told = await asked(address, "--timeout", "50ms")
    assert (status, "timed out" in told) == (1, True)


async def test_health_command_accepts_only_localhost() -> None:
    assert (await asked("10.0.0.1:9700"))[0] == 1
