"""Settings that every server has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from txmsg.errors import MisuseError
from txmsg.metrics.http import BearerToken
from txmsg.runtime.logs import LOG_FORMATS, LOG_LEVELS
from txmsg.settings.catalogue import COUNT_MAX, SIZE_BYTES_MAX, SettingKind, check_settings, setting
from txmsg.wire.access.limits import UserLimits
from txmsg.wire.address import check_reach
from txmsg.wire.tls import ServerTls


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfig:
    """Limits of each user at a server, unless the user has limits of its own."""

    connections_max: int = setting(
        0,
        "Connections of one user to a server. 0: no limit. `txmsg user limit` sets the limit of a single user.",
        least=0,
        most=COUNT_MAX,
        live=True,
    )
    requests_per_s: float = setting(
        0.0,
        "Requests per second of one user. 0: no limit.",
        kind=SettingKind.NUMBER,
        least=0,
        most=COUNT_MAX,
        live=True,
    )
    messages_per_s: float = setting(
        0.0,
        "Messages per second that one user sends. 0: no limit.",
        kind=SettingKind.NUMBER,
        least=0,
        most=COUNT_MAX,
        live=True,
    )
    in_flight_bytes: int = setting(
        0,
        "Bytes of one user's requests in progress. 0: no limit.",
        kind=SettingKind.SIZE,
        least=0,
        most=SIZE_BYTES_MAX,
        live=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def limits(self) -> UserLimits:
        """Return the limits in the form of guards."""
        return UserLimits(
            connections=self.connections_max,
            requests_per_s=self.requests_per_s,
            messages_per_s=self.messages_per_s,
            in_flight_bytes=self.in_flight_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS of a server's port, used only if a certificate is given."""

    cert: Path | None = setting(
        None,
        "Certificate chain of this server (PEM). Reloaded when it changes.",
        kind=SettingKind.FILE,
        option="--tls-cert",
        shown="no TLS",
    )
    key: Path | None = setting(
        None, "Private key of the certificate, without a password (PEM).", kind=SettingKind.FILE, option="--tls-key"
    )
    client_ca: Path | None = setting(
        None,
        "CAs (PEM). Each client must have a certificate of one of them.",
        kind=SettingKind.FILE,
        option="--tls-client-ca",
        shown="clients need none",
    )

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None) or (self.client_ca is not None and self.cert is None):
            raise MisuseError("TLS needs both a certificate and its key: give --tls-cert and --tls-key, or neither")
        self.of_server()  # Reads the files now, so that a mistake is reported before anything starts.

    def check_listen(self, listen: str, *, authentication: bool, insecure: bool) -> None:
        """Raises MisuseError for an address that other machines can reach without authentication."""
        check_reach(
            "--listen",
            listen,
            "every client that reaches it may read and change everything",
            "give --tls-cert and --tls-key (`txmsg cert dev` makes some to try) with --auth or --tls-client-ca, so "
            "that only clients with a token or a certificate get in, or --insecure if only trusted clients can "
            "reach the network",
            is_guarded=insecure or self.client_ca is not None or (self.cert is not None and authentication),
        )

    def check_http_listen(self, listen: str, token_file: Path | None, *, insecure: bool) -> None:
        """Raises MisuseError for such an address of /metrics, and for an unusable token; "" means not served."""
        if token_file is not None:
            BearerToken(token_file)
        if listen:
            check_reach(
                "--http-listen",
                listen,
                "every client that reaches it can read all metrics",
                "give --tls-cert and --tls-key with --http-token-file or --tls-client-ca, so that only scrapers with "
                "the token or a certificate read them, or --insecure if only trusted clients can reach the network",
                is_guarded=insecure or self.client_ca is not None or (self.cert is not None and token_file is not None),
            )

    def of_server(self) -> ServerTls | None:
        """Return the TLS of these files; None without them. Raises MisuseError if one cannot be used."""
        return None if self.cert is None or self.key is None else ServerTls(self.cert, self.key, self.client_ca)


def authentication_setting(users: str) -> bool:
    """Return the setting `authentication`. users: the place of users and rules, in words."""
    return setting(
        False,
        f"Clients need a token or a certificate of a user, and may do only what rules allow {users}.",
        option="--auth",
    )


def insecure_setting() -> bool:
    """Return the setting `insecure`: see `TlsConfig.check_listen`."""
    return setting(
        False,
        "Allow other machines to connect without TLS, tokens or certificates: only for trusted networks.",
        option="--insecure",
    )


def http_listen_setting() -> str:
    """Return the setting `http_listen`, the address of /metrics."""
    return setting(
        "",
        "Address of /metrics, /livez and /readyz, with HTTPS if a certificate is given. Port 0 picks a free port.",
        metavar="HOST:PORT",
        option="--http-listen",
        shown="not served",
    )


def http_token_file_setting() -> Path | None:
    """Return the setting `http_token_file` for /metrics. A file, since it must work while the database is away."""
    return setting(
        None,
        "File with the token that readers of /metrics must send (Authorization: Bearer). Reloaded at each request.",
        kind=SettingKind.FILE,
        option="--http-token-file",
        shown="none is needed",
    )


def log_level_setting() -> str:
    """Return the setting `log_level`."""
    return setting("info", "Lowest level logged to stderr.", choices=LOG_LEVELS, live=True, option="--log-level")


def log_format_setting() -> str:
    """Return the setting `log_format`. One variable for all servers: log collectors want one format."""
    return setting(
        "text",
        "How the log is written to stderr: text, or one JSON object per line.",
        choices=LOG_FORMATS,
        option="--log-format",
        variable="TXMSG_LOG_FORMAT",
    )
