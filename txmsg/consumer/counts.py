"""Counts of a consumer since it was made. Updated once per request, or per part of a queue, never per message."""

from __future__ import annotations

from txmsg.metrics.catalogue import GROUP
from txmsg.metrics.figures import Figures


class ConsumerCounts:
    """Counts of the messages that a consumer has received and settled."""

    __slots__ = ("acknowledged", "failed_calls", "received", "refused")

    def __init__(self) -> None:
        self.received = 0
        self.acknowledged = 0
        self.refused = 0
        self.failed_calls = 0

    def put_figures(self, figures: Figures, group: str, *, held: int) -> None:
        """Add the counts to figures, and the number of held messages."""
        labels = {GROUP: group}
        figures.add("txmsg_client_received_messages_total", self.received, **labels)
        figures.add("txmsg_client_acknowledged_messages_total", self.acknowledged, **labels)
        figures.add("txmsg_client_refused_messages_total", self.refused, **labels)
        figures.add("txmsg_client_poll_errors_total", self.failed_calls, **labels)
        figures.add("txmsg_client_held_messages", held, **labels)
