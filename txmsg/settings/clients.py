"""Settings of clients: an application gives them as arguments, and an operator may change them at run time."""

from __future__ import annotations

from dataclasses import dataclass

from txmsg.settings.catalogue import Kind, check_settings, setting

CLIENT = "client"
"""The scope; `client.concurrency@GROUP` is for one group."""
CONCURRENCY_MAX = 4096
PREFETCH_BYTES_MAX = 1024**3
VISIBILITY_TIMEOUT_S_MIN, VISIBILITY_TIMEOUT_S_MAX = 1.0, 12 * 3600.0
_AS_MADE = "as the application made the consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What brokers tell consumers. None: as the application made them."""

    concurrency: int | None = setting(
        None,
        "Handlers at once, of each kind, in each consumer. Those that run go on; what was fetched before is handled.",
        kind=Kind.COUNT,
        least=1,
        most=CONCURRENCY_MAX,
        live=True,
        shown=_AS_MADE,
    )
    prefetch_bytes: int | None = setting(
        None,
        "Total size of bodies that each consumer fetches ahead from a broker; one message may exceed it.",
        kind=Kind.SIZE,
        least=1,
        most=PREFETCH_BYTES_MAX,
        live=True,
        shown=_AS_MADE,
    )
    visibility_timeout_s: float | None = setting(
        None,
        "When nothing is heard of a consumer for so long, others get what it holds. Holds from its next call on.",
        kind=Kind.DURATION,
        least=VISIBILITY_TIMEOUT_S_MIN,
        most=VISIBILITY_TIMEOUT_S_MAX,
        live=True,
        shown=_AS_MADE,
    )

    def __post_init__(self) -> None:
        check_settings(self)
