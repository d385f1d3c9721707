"""What somebody has changed, as the audit log tells it: the same words in a broker's table and in a server's log lines.

Knows no database. A MetaQ server has none either: its audit log are its log lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from txmsg.runtime.logs import EventLog
from txmsg.wire.caller import Caller, current_caller

_log = EventLog(__name__)

ANYONE: Final = "anyone"
"""Who calls, where there is no authentication."""
ITSELF: Final = "txmsg"
"""What a process does by itself."""
_STATE_LENGTH_MAX: Final = 8000
_TARGET_LENGTH_MAX: Final = 1000

State = Mapping[str, object] | None
"""What is there before or after a change, as far as it matters. None: nothing."""


class AuditedChange(NamedTuple):
    """An entry of the audit log. before, after: JSON."""

    who: str
    address: str
    action: str
    target: str
    before: str | None
    after: str | None

    def log_change(self) -> None:
        """Logs it."""
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
    """An entry. caller: who has done it, if not who makes the call that is being answered."""
    caller = caller or current_caller()
    who = caller.name or (ANYONE if caller.address else ITSELF)
    return AuditedChange(who, caller.address, action, target[:_TARGET_LENGTH_MAX], _json(before), _json(after))


def _json(state: State) -> str | None:
    if state is None:
        return None
    text = json.dumps(state, default=str)
    if len(text) > _STATE_LENGTH_MAX:
        text = json.dumps({"beginning": text[:_STATE_LENGTH_MAX]})
    return text
