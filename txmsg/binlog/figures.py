"""The metrics and the readiness of a tailer. The tailer works on a thread; this module only reads its notes."""

from __future__ import annotations

from typing import Final, assert_never

from txmsg.binlog.tailer import Tailer, TailerState
from txmsg.checks.database import TAILER_WAITS
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures

_SILENCE_S_MAX: Final = 120.0


def unready(tailer: Tailer) -> str:
    """Return the reason why a tailer neither mirrors nor stands by; empty if it does one of them."""
    match tailer.state:
        case TailerState.STARTING:
            return TAILER_WAITS.found(reason="it has not begun: its database, or its log, is away").what
        case TailerState.TAKING_OVER:
            return TAILER_WAITS.found(reason="it takes over from another one, and does not mirror yet").what
        case TailerState.INTERRUPTED:
            return TAILER_WAITS.found(reason="its database, or its log, is away: it tries again").what
        case TailerState.STANDING_BY | TailerState.TAILING:
            return ""
        case state:
            assert_never(state)


def dead(tailer: Tailer) -> str:
    """Return the reason to restart a tailer whose thread hangs, else "". A step takes seconds and reports meanwhile."""
    silence_s = tailer.silence_s()
    return f"nothing was heard of the tailer's thread for {silence_s:.0f} s" if silence_s > _SILENCE_S_MAX else ""


def figures_of(tailer: Tailer) -> Figures:
    """Return all figures of a tailer, without those that are unknown at the moment."""
    figures, progress, state = Figures(ExportingProcess.TAILER), tailer.progress, tailer.state
    figures.put("txmsg_ready", not unready(tailer))
    figures.put("txmsg_mirror_tailing", state is TailerState.TAILING)
    if state is not TailerState.STANDING_BY:
        figures.put("txmsg_mirror_lag_seconds", progress.lag_s)
    if state is TailerState.TAILING:
        figures.put("txmsg_mirror_lag_messages", max(0, progress.goal - progress.messages))
    if (slot := progress.slot) is not None:
        figures.put("txmsg_mirror_lag_bytes", slot.behind_bytes)
        figures.put("txmsg_mirror_kept_bytes", slot.kept_bytes)
        if slot.safe_bytes is not None:
            figures.put("txmsg_mirror_safe_bytes", slot.safe_bytes)
    figures.put("txmsg_mirror_stopped_queues", progress.stopped)
    figures.put("txmsg_mirror_messages_total", progress.messages)
    figures.put("txmsg_mirror_refilled_messages_total", progress.refilled)
    figures.put("txmsg_mirror_repeated_messages_total", progress.repeated)
    figures.put("txmsg_mirror_missing_messages_total", progress.missing)
    figures.put("txmsg_mirror_foreign_changes_total", progress.foreign)
    figures.put("txmsg_mirror_append_seconds", progress.appends)
    return figures
