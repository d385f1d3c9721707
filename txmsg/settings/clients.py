"""Settings of clients: an application gives them as arguments, and an operator may change them at run time."""

from __future__ import annotations

from dataclasses import dataclass

from txmsg.settings.catalogue import Kind, check_settings, setting

CLIENT = "client"
"""The scope; `client.concurrency@GROUP` is for one group."""
CONCURRENCY_MAX = 4096


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
        shown="as the application made the consumer",
    )

    def __post_init__(self) -> None:
        check_settings(self)
