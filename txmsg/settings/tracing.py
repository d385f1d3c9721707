"""The setting of servers that trace, and the tracing that it switches on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.errors import MisuseError
from txmsg.runtime.logs import EventLog
from txmsg.settings.catalogue import setting

if TYPE_CHECKING:
    from txmsg.tracing import Tracing

_log = EventLog(__name__)


def tracing_setting(what: str) -> bool:
    """Return the setting `tracing` of a server. what: the traced work, in words."""
    return setting(
        False,
        f"Trace {what} with OpenTelemetry; start the process with `opentelemetry-instrument`.",
        option="--tracing",
    )


def tracing_of_process() -> Tracing:
    """Return the Tracing of a server whose setting `tracing` is on. Raises MisuseError without OpenTelemetry."""
    try:
        from txmsg.tracing import Tracing
        from txmsg.tracing.tracing import sdk_is_set_up
    except ImportError as exc:
        raise MisuseError(f"the option --tracing cannot be used: {exc}") from exc
    if not sdk_is_set_up():
        _log.warning(
            "tracing.without_sdk",
            "tracing is on, but no OpenTelemetry SDK is set up in this process, so there are no spans: start it by "
            "`opentelemetry-instrument txmsg ...`, of the package opentelemetry-distro",
        )
    return Tracing()
