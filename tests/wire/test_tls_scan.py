"""Results of `openssl s_client` at the ports of a server: it offers versions and ciphers that our client never does."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.wire.certificates import Authority
from tests.wire.services import Echo, ask, serving
from txmsg.wire.channel import Channel
from txmsg.wire.connection import greeting
from txmsg.wire.frames import PREFACE
from txmsg.wire.shared import ConnectionLimits
from txmsg.wire.tls import client_context

OPENSSL = shutil.which("openssl")
pytestmark = [pytest.mark.long, pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")]
WAIT_S = 60.0
QUICK = ConnectionLimits(greeting_s=1.0, look_s=0.05)
_WEAK = "NULL:aNULL:EXPORT:LOW:3DES:RC4:DES:MD5:@SECLEVEL=0"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def scan(address: str, authority: Authority, *options: str, says: bytes = b"", whole: bool = False) -> str:
    """Return the output of s_client, given this input, until the connection ends."""
    process = await asyncio.create_subprocess_exec(
        OPENSSL or "",
        *("s_client", "-connect", address, "-CAfile", str(authority.file), "-verify_return_error", *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(says)
    if not whole:
        process.stdin.write_eof()
    try:
        return (await asyncio.wait_for(process.stdout.read(), WAIT_S)).decode(errors="replace")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def encrypted(authority: Authority) -> AsyncIterator[str]:
    """Run a server with TLS; at the end it must still serve a good client."""
    async with serving(tls=authority.server(), limits=QUICK) as (address, _, _):
        yield address
        async with Channel(address, tls=client_context(str(authority.file))) as channel:
            assert (await channel.call(Echo.back, ask(b"x"), timeout_s=WAIT_S)).held == b"x"


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
async def test_current_tls_versions_are_supported(authority: Authority, version: str) -> None:
    async with encrypted(authority) as address:
        found = await scan(address, authority, version)
        assert "Verify return code: 0 (ok)" in found
        assert "Compression: NONE" in found or version == "-tls1_3"


@pytest.mark.parametrize(
    "options",
    [
        ("-tls1", "-cipher", "ALL:@SECLEVEL=0"),
        ("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", _WEAK),
    ],
)
async def test_old_versions_and_weak_ciphers_are_refused(authority: Authority, options: tuple[str, ...]) -> None:
    async with encrypted(authority) as address:
        found = await scan(address, authority, *options)
        assert "alert" in found, found  # of the server: the client would have gone on
        assert "Cipher is (NONE)" in found


async def test_renegotiation_is_refused(authority: Authority) -> None:
    async with encrypted(authority) as address:
        found = await scan(address, authority, "-tls1_2", says=b"R\n", whole=True)
        assert "RENEGOTIATING" in found
        assert "no renegotiation" in found, found


async def test_session_tickets_are_not_issued(authority: Authority) -> None:
    async with encrypted(authority) as address:
        found = await scan(address, authority, "-tls1_3", "-reconnect")
        assert "New, TLSv1.3" in found
        assert "Reused" not in found
        assert "New Session Ticket" not in found


async def test_plain_text_at_a_tls_port_gets_only_an_alert(authority: Authority) -> None:
    async with encrypted(authority) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting())
        said = await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()
        assert said[:1] == b"\x15"
        assert PREFACE not in said


async def test_tls_at_a_plain_port_is_closed(authority: Authority) -> None:
    async with serving(limits=QUICK) as (address, answers, server):
        found = await scan(address, authority)
        assert "no peer certificate available" in found
        assert answers.begun == 0
        async with Channel(address) as channel:
            assert (await channel.call(Echo.back, ask(b"x"), timeout_s=WAIT_S)).held == b"x"
        assert server.shared.arriving_bytes == 0
