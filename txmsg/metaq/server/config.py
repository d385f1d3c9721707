"""Settings of a MetaQ server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from txmsg.errors import MisuseError
from txmsg.metaq.store.log import LogConfig
from txmsg.metrics.http import check_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaQConfig:
    """How a MetaQ server runs."""

    root: Path
    """The directory of the log; made when missing. One process writes it."""
    listen: str = "127.0.0.1:7720"
    """HOST:PORT, or unix:PATH. Port 0 takes a free one."""
    http_listen: str = ""
    """HOST:PORT on loopback for /metrics, /livez and /readyz. Default: none are served. Port 0 takes a free one."""
    log: LogConfig = field(default_factory=LogConfig)
    """How the log is kept."""
    connections_max: int = 16_000
    """Clients that may be connected. Default 16,000; more are closed as soon as they come."""
    appending_size_bytes_max: int = 256 * 1024 * 1024
    """Bytes of appends under way, together. Default 256 MiB; what comes then is refused with Overloaded."""
    sending_size_bytes_max: int = 64 * 1024 * 1024
    """Bytes of fetches on their way, together. Default 64 MiB, a piece of 1 MiB each. Others wait; slow ones end."""
    arriving_size_bytes_max: int = 256 * 1024 * 1024
    """Bytes of large appends on their way, together. Default 256 MiB; what comes then is refused with Overloaded."""
    send_timeout_s: float = 20.0
    """Seconds for a piece of a fetch or an append, and in all a second more for each MiB. Default 20."""
    stop_s: float = 10.0
    """Seconds that calls under way have to finish when the server is told to stop. Default 10."""

    def __post_init__(self) -> None:
        if self.http_listen:
            check_loopback(self.http_listen)
        for name in ("send_timeout_s", "stop_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise MisuseError(f"{name}={value} must be more than 0 seconds")
        for name in (
            "connections_max", "appending_size_bytes_max", "sending_size_bytes_max", "arriving_size_bytes_max",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise MisuseError(f"{name}={getattr(self, name)} must be at least 1")
