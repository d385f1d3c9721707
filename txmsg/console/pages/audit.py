"""Who has changed what: the settings, of all the newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txmsg.console.look import Look
from txmsg.console.views import View


async def _read(look: Look) -> Mapping[str, Any]:
    return {"changes": await look.settings(lambda settings: settings.history(""))}


VIEWS: Final = (View(path="/audit", section="audit", template="audit.html", read=_read, every_s=2.0),)
ACTIONS: Final = ()
