"""The gateway's TLS: the certificate shown, and accepted client certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.wire.certificates import Authority
from txmsg.errors import MisuseError
from txmsg.rocketmq.config import GatewayConfig
from txmsg.rocketmq.grpc.port import HTTP2, Port
from txmsg.settings.common import TlsConfig

_WAIT_S = 60.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@asynccontextmanager
async def _listening(config: TlsConfig) -> AsyncIterator[int]:
    tls = config.of_server()
    assert tls is not None
    port = Port(
        {},
        connections_max=9,
        calls_max=1,
        calls_of_connection_max=1,
        request_size_bytes_max=1,
        requests_size_bytes_max=1,
    )
    try:
        yield await port.start("127.0.0.1:0", tls.for_web(HTTP2))
    finally:
        await port.stop(0)


async def _certificate(port: int) -> str:
    """Return the certificate that a client sees."""
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=_WAIT_S)


async def _is_in(port: int, *pem: bytes | None) -> bool:
    """Return True if a client that trusts this authority and shows this key and certificate gets an answer."""
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(*pem)) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/nobody/Answers")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(b"", timeout=_WAIT_S)
    return failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_new_connections_get_the_newest_usable_certificate(authority: Authority) -> None:
    certificate, key = authority.issue("127.0.0.1")
    async with _listening(TlsConfig(cert=certificate, key=key)) as port:
        first = await _certificate(port)
        authority.issue("127.0.0.1")
        second = await _certificate(port)
        key.write_text("broken")
        third = await _certificate(port)
    assert (first != second, third == second) == (True, True)


async def test_client_certificate_is_required_if_authorities_are_configured(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("127.0.0.1")
    config = TlsConfig(cert=certificate, key=key, client_ca=authority.file)
    own = [path.read_bytes() for path in reversed(authority.issue("shop", "shop"))]
    others = [path.read_bytes() for path in reversed(Authority(tmp_path / "other").issue("shop"))]
    trusted = authority.file.read_bytes()
    async with _listening(config) as port:
        assert await _is_in(port, trusted, *own)
        assert not await _is_in(port, trusted)
        assert not await _is_in(port, trusted, *others)


async def test_new_connections_need_a_certificate_of_the_newest_authorities(
    authority: Authority, tmp_path: Path
) -> None:
    """Existing connections continue."""
    certificate, key = authority.issue("127.0.0.1")
    trusted, clients = authority.file.read_bytes(), tmp_path / "clients.pem"
    makers = [Authority(tmp_path / name) for name in ("before", "after")]
    before, after = ([path.read_bytes() for path in reversed(maker.issue("shop"))] for maker in makers)
    clients.write_bytes(makers[0].file.read_bytes())
    async with _listening(TlsConfig(cert=certificate, key=key, client_ca=clients)) as port:
        assert await _is_in(port, trusted, *before)
        assert not await _is_in(port, trusted, *after)
        clients.write_bytes(makers[1].file.read_bytes())
        assert await _is_in(port, trusted, *after)
        assert not await _is_in(port, trusted, *before)


async def test_http2_is_negotiated_with_a_new_certificate_too(authority: Authority) -> None:
    """Go and Java clients close connections without it."""
    certificate, key = authority.issue("127.0.0.1")
    asking = ssl.create_default_context(cafile=authority.file)
    asking.set_alpn_protocols(["h2"])
    async with _listening(TlsConfig(cert=certificate, key=key)) as port:
        for _ in range(2):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=asking)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            writer.close()
            authority.issue("127.0.0.1")


def test_listening_beyond_localhost_requires_authentication(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("127.0.0.1")
    plain, tls = TlsConfig(), TlsConfig(cert=certificate, key=key)
    keys = tmp_path / "access-keys.key"
    for config, file in ((plain, None), (plain, keys), (tls, None)):
        with pytest.raises(MisuseError, match=r"--listen 0\.0\.0\.0:8081 is reached from other machines"):
            GatewayConfig(broker="127.0.0.1:1", listen="0.0.0.0:8081", tls=config, access_key_file=file)
    asking = TlsConfig(cert=certificate, key=key, client_ca=authority.file)
    for config, file in ((tls, keys), (asking, None)):
        assert GatewayConfig(broker="127.0.0.1:1", listen="0.0.0.0:8081", tls=config, access_key_file=file)
