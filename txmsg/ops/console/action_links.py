"""Buttons for actions of the console, or the reason why this visitor may not use them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.pages import ACTIONS

_ACTIONS: Final = {action.path: action for action in ACTIONS}
_PARAMETER: Final = re.compile(r"\{(\w+)(?::int)?\}")


@dataclass(frozen=True, slots=True)
class ActionLink:
    """The address of an action. refusal: the reason why this visitor may not use it; "" if it may."""

    url: str
    refusal: str


def offer_of(look: PageContext, path: str, /, **values: object) -> ActionLink:
    """Return the link of the action with this path, as in ACTIONS. values: its parameters, and the query for its
    dialog.
    """
    action = _ACTIONS[path]
    names = {name: str(value) for name, value in values.items()}
    refusal = action.refusal(look.who, names)
    query = {name: value for name, value in names.items() if name not in _PARAMETER.findall(path)}
    url = look.url(_PARAMETER.sub(lambda parameter: names[parameter[1]], path), **query)
    return ActionLink(url, "" if refusal is None else str(refusal))
