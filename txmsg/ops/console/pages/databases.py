"""All Notify databases on one page, if there are several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.pages.overview import findings, lines
from txmsg.ops.console.views import View


async def _read(look: PageContext) -> Mapping[str, Any]:
    for watch in look.watches.values():
        watch.note_visit()
    return {
        "cards": [
            {
                "watch": watch,
                "url": f"/{watch.name}",
                "lines": lines(watch) if watch.snapshot else [],
                "findings": findings(watch.snapshot) if watch.snapshot else [],
            }
            for watch in look.watches.values()
        ]
    }


DATABASES: Final = View(path="", section="", template="databases.html", read=_read)
