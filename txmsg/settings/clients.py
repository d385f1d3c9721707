"""Settings of clients: an application gives them as arguments, and an operator may change them at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from txmsg.settings.catalogue import SettingKind, check_settings, setting

CLIENT = "client"
"""The scope; `client.concurrency@GROUP` is for one group."""
CONCURRENCY_MAX = 4096
PREFETCH_BYTES_MAX = 1024**3
VISIBILITY_TIMEOUT_S_MIN, VISIBILITY_TIMEOUT_S_MAX = 1.0, 12 * 3600.0
_AS_MADE = "as the application made the consumer"


def _override(meaning: str, kind: SettingKind, least: float, most: float) -> Any:
    return setting(None, meaning, kind=kind, least=least, most=most, live=True, shown=_AS_MADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings that brokers send to consumers. None: as the application made them."""

    concurrency: int | None = _override(
        "Number of handlers of each subscription that run at once, in each consumer. Running handlers continue; "
        "messages fetched before are handled.",
        SettingKind.COUNT,
        1,
        CONCURRENCY_MAX,
    )
    prefetch_bytes: int | None = _override(
        "Total size of bodies that each consumer fetches ahead from a broker; one message may exceed it.",
        SettingKind.SIZE,
        1,
        PREFETCH_BYTES_MAX,
    )
    visibility_timeout_s: float | None = _override(
        "Time without a sign of life of a consumer after which others get its messages. Applies from its next call on.",
        SettingKind.DURATION,
        VISIBILITY_TIMEOUT_S_MIN,
        VISIBILITY_TIMEOUT_S_MAX,
    )

    def __post_init__(self) -> None:
        check_settings(self)
