"""One message that a broker delivered, on its way through a handler."""

from __future__ import annotations

from txmsg.client.receiving.deliveries import Deliveries
from txmsg.client.receiving.unsettled import DeliveredBatch
from txmsg.consumer.failures import HandlerFailure
from txmsg.consumer.subscriptions import Handler
from txmsg.consumer.workers import MessageRun
from txmsg.message import ReceivedMessage
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)


class MessageDelivery(MessageRun):
    """A run of one message: the broker decides which member gets the next one of its queue or its ordering key.

    `deliveries` is told once that it was handled, that it failed, or neither. From `late_at` (of the loop) the handler
    takes longer than the visibility timeout.
    """

    __slots__ = ("_deliveries", "_failure", "_hand", "_is_given", "_is_noted", "late_at", "message")

    def __init__(
        self, deliveries: Deliveries, hand: DeliveredBatch, message: ReceivedMessage, handler: Handler, late_at: float
    ) -> None:
        super().__init__(handler)
        self.message = message
        self.late_at = late_at
        self._deliveries = deliveries
        self._hand = hand
        self._is_given = self._is_noted = False
        self._failure: HandlerFailure | None = None

    def next(self, now: float) -> ReceivedMessage | None:
        """Return the message, if the broker still leaves it to this process; else None."""
        if self._is_given:
            return None
        self._is_given = True
        assert self.message.offset is not None
        if self._deliveries.holds(self._hand, self.message.offset, now):
            return self.message
        _log.warning(
            "delivery.taken_back",
            "group %(group)s: a message of topic %(topic)r that waited here is redelivered to another consumer: its "
            "broker did not hear of this process within visibility_timeout_s, has ended, or has handed the queue over",
            group=self.handler.group,
            topic=self.handler.topic,
        )
        return None

    def note(self, failure: HandlerFailure | None) -> None:
        """Note the result that `end_run` reports."""
        self._is_noted, self._failure = True, failure

    async def tell_alone(self, *, is_alone: bool) -> bool:
        """Report that it begins, alone in its process, or that others run beside it from now on.

        Returns True if the broker has heard it and still leaves the message to this process.
        """
        assert self.message.offset is not None
        return await self._deliveries.tell_alone(self._hand, self.message.offset, is_alone=is_alone)

    def end_run(self) -> None:
        """Settle the message by `deliveries`."""
        assert self.message.offset is not None
        if not self._is_noted:
            self._deliveries.drop(self._hand, self.message.offset)
        elif self._failure is None:
            self._deliveries.ack(self._hand, self.message.offset)
        else:
            self._deliveries.refuse(self._hand, self.message.offset, self._failure)
