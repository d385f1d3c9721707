"""TLS of the gateway's port: the files of every server's TLS, as gRPC takes them. Knows no calls."""

from __future__ import annotations

import grpc

from txmsg.settings.common import TlsConfig
from txmsg.wire.tls import ServerTls


class Certificates:
    """Credentials of a gRPC server, for which files that change are read again: each connection gets the newest."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises MisuseError for files that cannot be used."""
        tls = config.of_server()
        assert tls is not None, "whoever makes it has seen that there is a certificate"
        self._config = config
        self._tls: ServerTls = tls
        self._used = tls.context

    def credentials(self) -> grpc.ServerCredentials:
        """What a server's port is added with."""
        return grpc.dynamic_ssl_server_credentials(
            self._read(),
            self._changed,  # type: ignore[arg-type]  # its types do not say that it may return None
            self._tls.asks_clients,
        )

    def renew(self) -> None:
        """Looks whether the files have changed, also while nobody connects: one that expires is told of."""
        self._tls.renew()

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by a thread of gRPC for each connection, before its handshake. None: what was used before."""
        self._tls.renew()
        if self._tls.context is self._used:
            return None
        used = self._tls.context  # made of files that fit each other; one that does not leaves the context before
        read = self._read()
        self._used = used
        return read

    def _read(self) -> grpc.ServerCertificateConfiguration:
        config = self._config
        assert config.cert is not None
        assert config.key is not None
        authorities = None if config.client_ca is None else config.client_ca.read_bytes()
        return grpc.ssl_server_certificate_configuration(
            [(config.key.read_bytes(), config.cert.read_bytes())], authorities
        )
