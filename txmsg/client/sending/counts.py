"""What a producer or a consumer has done since it was made. Counted once per request, never per message."""

from __future__ import annotations

from collections import Counter

from txmsg.metrics.catalogue import ERROR, GROUP, OPERATION
from txmsg.metrics.counts import SECONDS, Histogram
from txmsg.metrics.figures import Figures


class RequestCounts:
    """Requests of one kind, each for the calls that waited."""

    __slots__ = ("calls", "errors", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.errors: Counter[str] = Counter()
        """By code: of single calls, as brokers answered, and of whole requests."""
        self.seconds = Histogram(SECONDS)


class ProducerCounts:
    """What a producer has sent."""

    __slots__ = ("half", "outcome", "send")

    def __init__(self) -> None:
        self.send = RequestCounts()
        self.half = RequestCounts()
        self.outcome = RequestCounts()

    def put(self, figures: Figures) -> None:
        """Adds them."""
        for operation, counts in (("send", self.send), ("half", self.half), ("outcome", self.outcome)):
            figures.add("txmsg_client_calls_total", counts.calls, **{OPERATION: operation})
            figures.add("txmsg_client_request_seconds", counts.seconds, **{OPERATION: operation})
            for code, count in list(counts.errors.items()):
                figures.add("txmsg_client_errors_total", count, **{OPERATION: operation, ERROR: code})


class ConsumerCounts:
    """What a consumer has received and settled."""

    __slots__ = ("acknowledged", "failed_calls", "received", "refused")

    def __init__(self) -> None:
        self.received = 0
        self.acknowledged = 0
        self.refused = 0
        self.failed_calls = 0

    def put(self, figures: Figures, group: str, *, held: int) -> None:
        """Adds them, and how many messages are held."""
        labels = {GROUP: group}
        figures.add("txmsg_client_received_messages_total", self.received, **labels)
        figures.add("txmsg_client_acknowledged_messages_total", self.acknowledged, **labels)
        figures.add("txmsg_client_refused_messages_total", self.refused, **labels)
        figures.add("txmsg_client_poll_errors_total", self.failed_calls, **labels)
        figures.add("txmsg_client_held_messages", held, **labels)
