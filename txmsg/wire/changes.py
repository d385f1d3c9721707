"""Changes as the audit log records them: in the same words in a broker's table and in a server's log lines.

Knows no database. A MetaQ server has none either: its log lines are its audit log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from txmsg.runtime.logs import EventLog
from txmsg.wire.caller import Caller, current_caller

_log = EventLog(__name__)

ANYONE: Final = "anyone"
"""Name of the caller at a server without authentication."""
ITSELF: Final = "txmsg"
"""Name of the author of changes that a process makes by itself."""
_STATE_LENGTH_MAX: Final = 8000
_TARGET_LENGTH_MAX: Final = 1000

State = Mapping[str, object] | None
"""State before or after a change, as far as it matters. None: absent."""


class AuditedChange(NamedTuple):
    """An entry of the audit log. before, after: JSON."""

    who: str
    address: str
    action: str
    target: str
    before: str | None
    after: str | None

    def log_change(self) -> None:
        """Log the change."""
        _log.info(
            "audit.recorded",
            "%(who)s, from %(address)s: %(action)s %(target)s, before %(before)s, after %(after)s",
            who=self.who,
            address=self.address or "here",
            action=self.action,
            target=self.target,
            before=self.before,
            after=self.after,
        )


def change_of(
    action: str, target: str, *, before: State = None, after: State = None, caller: Caller | None = None
) -> AuditedChange:
    """Return the audit entry of a change. caller: its author; by default the caller of the call that is being
    answered."""
    caller = caller or current_caller()
    who = caller.name or (ANYONE if caller.address else ITSELF)
    return AuditedChange(who, caller.address, action, target[:_TARGET_LENGTH_MAX], _json(before), _json(after))


def _json(state: State) -> str | None:
    if state is None:
        return None
    text = json.dumps(state, default=str)
    # Cut and wrapped, so that it is still JSON.
    if len(text) > _STATE_LENGTH_MAX:
        text = json.dumps({"beginning": text[:_STATE_LENGTH_MAX]})
    return text
