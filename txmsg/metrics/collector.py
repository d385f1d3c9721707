"""A collector that adds the figures of producers and consumers to an application's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class Counted(Protocol):
    """A producer or consumer of txmsg.client."""

    def _put_figures(self, figures: Figures) -> None:
        """Add its counts to the figures."""
        ...


class ClientCollector:
    """A collector for prometheus_client: `REGISTRY.register(ClientCollector(producer, consumer))`.

    docs/metrics.md lists its metrics. Values of several producers, or consumers of one group, are added up. Needs
    `pip install prometheus-client`.
    """

    def __init__(self, *clients: Counted) -> None:
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        """Yield the current figures; called by prometheus_client, from any thread."""
        from txmsg.metrics.text import families_of

        figures = Figures(ExportingProcess.APPLICATION)
        for client in self._clients:
            client._put_figures(figures)
        return families_of(figures)
