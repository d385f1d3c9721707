"""Operations of this console: running and finished ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.views import View


async def _read(look: PageContext) -> Mapping[str, Any]:
    return {"operations": look.operations.of(look.owners)}


VIEWS: Final = (View(path="/operations", section="operations", template="operations.html", read=_read, every_s=0.5),)
ACTIONS: Final = ()
