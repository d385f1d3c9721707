"""Why attempts failed, as the tables of retries and dead letters keep it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from txmsg.administration.dead_letters import AttemptFailure

EXPIRED: Final = "not acknowledged within its visibility timeout"


def failure_of(value: Mapping[str, Any]) -> AttemptFailure:
    """One of the reasons that a retry or a dead letter keeps."""
    at, error = value.get("at"), value.get("error") or ""
    return AttemptFailure(
        attempt=value.get("attempt", 0),
        at=datetime.fromisoformat(at) if at else None,
        error=error,
        is_expired=error == EXPIRED,
    )
