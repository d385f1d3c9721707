"""Reasons of failed attempts, as the tables of retries and dead letters store them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from txmsg.administration.dead_letters import AttemptFailure

EXPIRED: Final = "not acknowledged within its visibility timeout"


def failure_of(value: Mapping[str, Any]) -> AttemptFailure:
    """Return one stored reason of a retry or dead letter as an `AttemptFailure`."""
    at, error = value.get("at"), value.get("error") or ""
    return AttemptFailure(
        attempt=value.get("attempt", 0),
        at=datetime.fromisoformat(at) if at else None,
        error=error,
        is_expired=error == EXPIRED,
    )
