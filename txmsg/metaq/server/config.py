"""Settings of a MetaQ server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from txmsg.metaq.store.log import LogConfig
from txmsg.settings.catalogue import Kind, check_settings, required, setting
from txmsg.settings.common import (
    TlsConfig,
    http_listen_setting,
    http_token_file_setting,
    insecure_setting,
    log_format_setting,
    log_level_setting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaQConfig:
    """How a MetaQ server runs."""

    data_dir: Path = required(
        "Directory of the log; created if it is missing. This process is its only writer.",
        kind=Kind.PATH,
        option="--data-dir",
    )
    listen: str = setting(
        "127.0.0.1:7720",
        "Address to listen on: HOST:PORT (port 0 picks a free port), or unix:PATH.",
        metavar="ADDRESS",
        option="--listen",
    )
    http_listen: str = http_listen_setting()
    http_token_file: Path | None = http_token_file_setting()
    tls: TlsConfig = field(default_factory=TlsConfig)
    """TLS of `listen` and `http_listen`."""
    insecure: bool = insecure_setting()
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()
    log: LogConfig = field(default_factory=LogConfig)
    """How the log is kept."""
    connections_max: int = setting(
        16_000,
        "Clients that may be connected. More are closed as soon as they come.",
        least=1,
    )
    appending_size_bytes_max: int = setting(
        256 * 1024 * 1024,
        "Bytes of appends under way, together. What comes then is refused with Overloaded.",
        least=1,
    )
    sending_size_bytes_max: int = setting(
        64 * 1024 * 1024,
        "Bytes of fetches on their way, together, a piece of 1 MiB each. Others wait; slow ones end.",
        least=1,
    )
    arriving_size_bytes_max: int = setting(
        256 * 1024 * 1024,
        "Bytes of requests that have not come whole, together. Above it, the slowest is refused with Overloaded.",
        least=1,
    )
    send_timeout_s: float = setting(
        20.0,
        "Time for a piece of a fetch, and in all a second more for each MiB.",
        least=0,
        is_open=True,
    )
    stop_s: float = setting(
        10.0,
        "Time that calls under way have to finish when the server is told to stop.",
        least=0,
        is_open=True,
        live=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        self.tls.check_listen(self.listen, authentication=False, insecure=self.insecure)
        self.tls.check_http_listen(self.http_listen, self.http_token_file, insecure=self.insecure)
