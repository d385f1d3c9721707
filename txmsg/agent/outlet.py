"""Where records go: into the log, or into a spool on disk while the log is away, and from there in order."""

from __future__ import annotations

from collections.abc import Sequence

from txmsg.errors import BrokerUnavailable, OutcomeUnknown
from txmsg.metaq.relay import Appendable, Relay
from txmsg.metaq.spool import Spool
from txmsg.metaq.store.log import Append


class Outlet:
    """One thread hands on to it.

    The spool is used only while the log does not answer: else each line would be written to this machine's disk twice.
    As long as anything is in it, everything goes through it, or it would be overtaken.
    """

    def __init__(self, log: Appendable, spool: Spool) -> None:
        self.spool = spool
        self.relay = Relay(spool, log)
        self._log = log

    def start(self) -> None:
        """Begins with what an earlier process left."""
        self.relay.start()

    def hand_on(self, appends: Sequence[Append]) -> None:
        """All of them are in the log, or on disk in the spool, on return.

        Raises Overloaded when the spool is full, and what the log raises when it refuses them.
        """
        if self.spool.is_empty:
            try:
                self._log.append(appends)
            except (BrokerUnavailable, OutcomeUnknown):
                pass  # of the second one the log may have them: they come once more, under the same ids
            else:
                return
        self.spool.put(appends)
        self.relay.wake()

    def close(self) -> None:
        """What is in the spool stays for the next process."""
        self.relay.close()
        self.spool.close()
