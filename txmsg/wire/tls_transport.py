"""TLS between a socket and an asyncio protocol, from the moment a client has connected.

asyncio's own TLS makes a protocol only after the handshake: until then the connection is not counted, its address is
unknown, and strangers that never shake hands use up the process's files. Here the protocol is made at once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

from txmsg.wire.frames import Buffer
from txmsg.wire.tls import TlsError, TlsStream


class TlsProtocol(asyncio.Protocol):
    """The protocol between the socket's transport and `inner`, which has a transport of its own."""

    def __init__(self, context: ssl.SSLContext, inner: asyncio.Protocol) -> None:
        self.context = context
        self.inner = inner
        self.stream = TlsStream(context)
        self.is_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make the inner protocol's transport; called by asyncio."""
        self.transport = cast("asyncio.Transport", transport)
        self.inner.connection_made(_Transport(self))

    def data_received(self, data: bytes) -> None:
        """Decrypt data for the inner protocol; called by asyncio."""
        if self.is_ended:
            return
        try:
            said = self.stream.receive(data)
        # The alert has to leave before the connection closes: a client with a wrong certificate learns the reason from
        # it.
        except TlsError:
            self.leave()
            self.end_sending()
            return
        self.leave()
        if said:
            self.inner.data_received(said)
        if self.stream.is_ended and not self.is_ended:
            self.end_sending()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end on to the inner protocol; called by asyncio."""
        self.is_ended = True
        self.inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass the pause on to the inner protocol; called by asyncio."""
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass the end of the pause on to the inner protocol; called by asyncio."""
        self.inner.resume_writing()

    def leave(self) -> None:
        """Write the bytes that TLS has to send."""
        if (data := self.stream.leaving()) and not self.transport.is_closing():
            self.transport.write(data)

    def end_sending(self) -> None:
        """Say that no more is sent, and close once that is written."""
        if not self.is_ended:
            self.is_ended = True
            self.stream.end_sending()
            self.leave()
            self.transport.close()


class _Transport(asyncio.Transport):
    """The transport of `inner`, in plain bytes."""

    def __init__(self, tls: TlsProtocol) -> None:
        super().__init__()
        self._tls = tls

    def write(self, data: Buffer) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if not self._tls.is_ended:
            self._tls.stream.encrypt_pieces(list_of_data)
            self._tls.leave()

    def close(self) -> None:
        self._tls.end_sending()

    def abort(self) -> None:
        self._tls.is_ended = True
        self._tls.transport.abort()

    def is_closing(self) -> bool:
        return self._tls.is_ended or self._tls.transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls.context if name == "sslcontext" else self._tls.transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._tls.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closing():
            self._tls.transport.resume_reading()

    def is_reading(self) -> bool:
        return self._tls.transport.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._tls.transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tls.transport.set_write_buffer_limits(high, low)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._tls.inner


def with_tls(make: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None) -> Callable[[], asyncio.Protocol]:
    """Return a factory of protocols like `make`, with TLS before them unless `context` is None."""
    return make if context is None else lambda: TlsProtocol(context, make())
