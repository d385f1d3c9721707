"""Certificates for tests: an authority, a server at 127.0.0.1, and a client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from txmsg.wire.tls import ServerTls


class Authority:
    """Issues certificates into files below `directory`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA()
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(
        self, name: str, file: str = "server", *, valid_s: float = 365 * 86400, begins_s: float | None = None
    ) -> tuple[Path, Path]:
        """Issue a certificate for a server of this name or address, or for a client, and its key.

        valid_s: until then from now on; begins_s: from then on, by default long ago.
        """
        now = datetime.now(UTC)
        begins = None if begins_s is None else now + timedelta(seconds=begins_s)
        issued = self._ca.issue_cert(name, not_before=begins, not_after=now + timedelta(seconds=valid_s))
        certificate, key = self._directory / f"{file}.pem", self._directory / f"{file}.key"
        key.write_bytes(issued.private_key_pem.bytes())
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return certificate, key

    def server(self, name: str = "127.0.0.1", *, client_ca: Path | None = None) -> ServerTls:
        """Return the TLS configuration of a server."""
        return ServerTls(*self.issue(name), client_ca)
