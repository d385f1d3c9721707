"""Settings that every server has."""

from __future__ import annotations

from txmsg.runtime.logs import LOG_LEVELS
from txmsg.settings.catalogue import setting


def http_listen_setting() -> str:
    """Of the field `http_listen`: where figures are served."""
    return setting(
        "",
        "Address of /metrics, /livez and /readyz, on loopback. Port 0 picks a free port.",
        metavar="HOST:PORT",
        option="--http-listen",
        shown="not served",
    )


def log_level_setting(*, live: bool = False) -> str:
    """Of the field `log_level`."""
    return setting("info", "Lowest level logged to stderr.", choices=LOG_LEVELS, live=live, option="--log-level")
