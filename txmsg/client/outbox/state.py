"""The state of a producer's outbox: shared by the calls of all its threads, and the relay."""

from __future__ import annotations

from collections.abc import Callable

from txmsg.client.outbox.circuit_breaker import CircuitBreaker
from txmsg.client.outbox.options import Outbox
from txmsg.errors import BrokerUnavailable, TxmsgError
from txmsg.metrics.figures import Figures


class OutboxState:
    """The circuit breaker, and figures.

    rows, refused and oldest_s are of the whole producer group, as the relay saw them last.
    """

    def __init__(self) -> None:
        self.circuit_breaker = CircuitBreaker()
        self.rows = 0
        self.refused = 0
        self.oldest_s = 0.0
        self.written = 0
        self.relayed = 0
        self.on_written: Callable[[], object] | None = None
        """Called when this process has added a row."""

    def check_room(self, outbox: Outbox, group: str, error: TxmsgError | None = None) -> None:
        """Raise BrokerUnavailable if no more may be kept. error: why it is to be.

        Rows are counted once in a second: exact numbers would make each call wait for the others.
        """
        if self.rows >= outbox.rows_max:
            raise BrokerUnavailable(
                f"{self.rows} transactions wait in the outbox of producer group {group}, which takes {outbox.rows_max}"
                f"{f': {error}' if error is not None else ''}; look why no broker takes them: `txmsg outbox list`"
            ) from error

    def note_written(self) -> None:
        """Note that a row is committed."""
        self.written += 1
        self.rows += 1
        if self.on_written is not None:
            self.on_written()

    def note_counted(self, rows: int, refused: int, oldest_s: float) -> None:
        """Note the backlog, as counted in the business database."""
        self.rows, self.refused, self.oldest_s = rows, refused, oldest_s

    def note_relayed(self, rows: int) -> None:
        """Note that rows are gone."""
        self.relayed += rows
        self.rows = max(0, self.rows - rows)

    def put_figures(self, figures: Figures) -> None:
        """Add its figures; for `txmsg.metrics.ClientCollector`."""
        figures.add("txmsg_client_outbox_rows", self.rows)
        figures.add("txmsg_client_outbox_refused_rows", self.refused)
        figures.add("txmsg_client_outbox_oldest_seconds", self.oldest_s)
        figures.add("txmsg_client_outbox_written_total", self.written)
        figures.add("txmsg_client_outbox_relayed_total", self.relayed)
