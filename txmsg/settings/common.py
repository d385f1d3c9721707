"""Settings that every server has."""

from __future__ import annotations

from txmsg.logs import LOG_FORMATS, LOG_LEVELS
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


def log_format_setting() -> str:
    """Of the field `log_format`: one variable for all servers, since whoever collects logs wants all of them alike."""
    return setting(
        "text",
        "How the log is written to stderr: text, or one JSON object per line.",
        choices=LOG_FORMATS,
        option="--log-format",
        variable="TXMSG_LOG_FORMAT",
    )
