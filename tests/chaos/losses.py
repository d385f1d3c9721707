"""Data that may be missing after a database lost some, by the available evidence.

  replicated  a promotion takes nothing of which anybody was told that it is stored
  sync        a promotion takes what the dead server held and the promoted one did not
  async       besides, each crash takes what was not written yet: at most what was acknowledged in its last moments
  memory      each crash takes all that was sent before it
  each        a restore takes what the dead server held and the backup does not

What began after the crash is never missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.history import DURABILITY, VISIBILITY_TIMEOUT_S, Handling, Loss, Record, Sending, serial_of

ASYNC_TAIL_S = 3.0
"""PostgreSQL writes asynchronous commits within three rounds of 0.2 s: within 1.5 s on the slowest disk of plan.py;
later on a busy machine."""


class Losses:
    """The losses of a record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._gone: defaultdict[str, list[Loss]] = defaultdict(list)
        self._changed: defaultdict[str, list[Loss]] = defaultdict(list)
        for loss in record.losses:
            for body in loss.gone:
                self._gone[body].append(loss)
            for serial in loss.changed:
                self._changed[serial].append(loss)
        self._places = {each for loss in record.losses for each in loss.places}

    def may_lack(self, sending: Sending, n: int) -> bool:
        """Return True if this message of the sending may be missing."""
        if any(self._takes(loss, sending) for loss in self._gone[f"{sending.serial}/{n}"]):
            return True
        return self._is_of_memory(sending, n) or self._is_of_async_tail(sending)

    def may_differ(self, sending: Sending) -> bool:
        """Return True if any part of the sending may differ from what a client was told."""
        undone_by = [loss for loss in self._record.losses if sending.transaction_id in loss.undone]
        if any(self._takes(loss, sending) for loss in (*self._changed[sending.serial], *undone_by)):
            return True
        return any(self.may_lack(sending, n) for n in range(len(sending.messages)))

    def may_be_forgotten(self, body: str) -> bool:
        """Return True if a message may have been delivered that is no longer in the log."""
        sending = self._record.sendings.get(serial_of(body))
        return sending is not None and (
            self.may_lack(sending, int(body.rpartition("/")[2])) or body in {each for each, _ in self._places}
        )

    def may_be_elsewhere(self, handling: Handling) -> bool:
        """Return True if the message may have been delivered at a position that it no longer has."""
        if (handling.body, handling.place) in self._places:
            return True
        sending = self._record.sendings.get(serial_of(handling.body))
        if sending is None:
            return False
        is_late = any(
            crash - ASYNC_TAIL_S < handling.got < crash + VISIBILITY_TIMEOUT_S for crash in self._record.crashes
        )
        return self.may_lack(sending, int(handling.body.rpartition("/")[2])) or (_is_async(sending) and is_late)

    def _takes(self, loss: Loss, sending: Sending) -> bool:
        """Return True if the loss excuses the sending. A replicated message known to be stored survives the primary."""
        if loss.is_restored or not any(DURABILITY[each.topic] == "replicated" for each in sending.messages):
            return True
        return sending.half_at is None and sending.acknowledged_at() is None and sending.returned_at is None

    def _is_of_memory(self, sending: Sending, n: int) -> bool:
        is_kept = DURABILITY[sending.messages[n].topic] != "memory"
        return not is_kept and any(sending.begun < crash for crash in self._record.crashes)

    def _is_of_async_tail(self, sending: Sending) -> bool:
        return _is_async(sending) and any(
            begun < crash and (ended is None or crash - ASYNC_TAIL_S < ended)
            for crash in self._record.crashes
            for begun, ended in _tellings(sending)
        )


def _is_async(sending: Sending) -> bool:
    """Return True if all topics are asynchronous: a transaction is as durable as its most durable topic."""
    return all(DURABILITY[each.topic] == "async" for each in sending.messages)


def _tellings(sending: Sending) -> Iterator[tuple[float, float | None]]:
    """Yield the times at which each stored item was sent and answered."""
    yield sending.begun, sending.half_at or sending.stored_at or sending.returned_at
    for told in sending.told:
        yield told.begun, told.ended
