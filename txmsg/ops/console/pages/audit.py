"""The audit log, and changes of settings, with their users, the newest first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from txmsg.administration.audit import AuditEntry, AuditQuery, AuditService
from txmsg.administration.settings import SettingHistoryQuery, SettingsService
from txmsg.ops.console.forms import int_of, time_of
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.views import View

PAGE_MAX: Final = 50
_FILTER: Final = ("who", "action", "target", "since")


class _Change(NamedTuple):
    """A value that an entry changed. None: it did not, or does not, exist."""

    name: str
    old: str | None
    new: str | None


async def _read(look: PageContext) -> Mapping[str, Any]:
    given = {name: value for name in _FILTER if (value := look.values.get(name, "").strip())}
    before_id = int_of(look, "before")
    words = {name: value for name, value in given.items() if name != "since"}
    query = AuditQuery(since=time_of(look, "since"), limit=PAGE_MAX, before_id=before_id, **words)
    found = await look.ask_broker(AuditService.list, query)
    is_whole = not given and before_id is None
    return {
        "entries": [(entry, _changes(entry)) for entry in found.entries],
        "next": found.next,
        "given": given,
        "changes": (await look.ask_broker(SettingsService.history, SettingHistoryQuery())).changes if is_whole else [],
    }


def _changes(entry: AuditEntry) -> Sequence[_Change]:
    before, after = entry.before or {}, entry.after or {}
    return [
        _Change(name, _text(before, name), _text(after, name))
        for name in dict.fromkeys((*before, *after))
        if name not in before or name not in after or before[name] != after[name]
    ]


def _text(values: Mapping[str, Any], name: str) -> str | None:
    if name not in values:
        return None
    value = values[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


VIEWS: Final = (View(path="/audit", section="audit", template="audit.html", read=_read, every_s=2.0),)
ACTIONS: Final = ()
