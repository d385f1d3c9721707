"""The destination of records: the log, or a spool on disk while the log is unavailable, and from there the log, in
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from txmsg.errors import BrokerUnavailable, OutcomeUnknown
from txmsg.metaq.relay import Appendable, SpoolRelay
from txmsg.metaq.spool import Spool
from txmsg.metaq.store.log import Append


class LogOutput:
    """Appends to the log, or to the spool. One thread opens it and calls `hand_on`.

    The spool is used only while the log does not answer: else each line would be written to this machine's disk twice.
    As long as anything is in it, everything goes through it, or it would be overtaken.
    """

    def __init__(self, log: Appendable, directory: Path, *, spool_size_bytes_max: int) -> None:
        self.directory = directory
        self.spool: Spool | None = None
        """The spool; None while it is not open."""
        self.relay: SpoolRelay | None = None
        self._spool_size_bytes_max = spool_size_bytes_max
        self._log = log
        self._is_started = False

    def start(self) -> None:
        """Start the thread that moves batches from the spool to the log, beginning with those of an earlier process."""
        self._is_started = True
        if self.relay is not None:
            self.relay.start()

    def open(self) -> None:
        """Open the spool if it is not open, or again after damage or a failed sync. Raises the errors of `Spool`."""
        if self.relay is not None and self.relay.is_spool_damaged:
            self.close()
        if self.spool is not None and self.spool.has_failed:
            self.close()
        if self.spool is None:
            self.spool = Spool(
                self.directory,
                size_bytes_max=self._spool_size_bytes_max,
                cure="move the file away; the agent goes on by itself",
            )
            self.relay = SpoolRelay(self.spool, self._log)
            if self._is_started:
                self.relay.start()

    def hand_on(self, appends: Sequence[Append]) -> None:
        """Append these records; on return all are in the log, or on disk in the spool, which must be open.

        Raises Overloaded when the spool is full, and what the log raises when it refuses them.
        """
        spool, relay = self.spool, self.relay
        assert spool is not None
        assert relay is not None
        # Directly into the log, but only past an empty spool: otherwise new lines would overtake those that wait.
        if spool.is_empty:
            try:
                self._log.append(appends)
            except (BrokerUnavailable, OutcomeUnknown):
                pass  # of the second one the log may have them: they come once more, under the same ids
            else:
                return
        spool.put_batches(appends)
        relay.wake()

    @property
    def failure(self) -> str:
        """The reason why the log refuses batches that wait in the spool; empty if it accepts them."""
        relay = self.relay
        return relay.failure if relay is not None else ""

    def waiting_size_bytes(self) -> int:
        """Return the size of what is not in the log yet; while the spool is not open, all that is in its directory."""
        spool = self.spool
        return spool.waiting_size_bytes if spool is not None else self._size_bytes()

    def used_ratio(self) -> float:
        """Return the share of the spool that is used; reading stops at 1."""
        spool = self.spool
        return (spool.size_bytes if spool is not None else self._size_bytes()) / self._spool_size_bytes_max

    def _size_bytes(self) -> int:
        try:
            return sum(path.stat().st_size for path in self.directory.glob("*.spool"))
        except OSError:
            return 0  # the source is held, and reports the reason

    def close(self) -> None:
        """Close the spool. Its batches stay for the next process, or until it is opened again."""
        relay, spool = self.relay, self.spool
        if relay is not None:
            relay.close()
        self.relay = self.spool = None
        if spool is not None:
            spool.close()
