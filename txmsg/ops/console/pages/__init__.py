"""The pages, in the order of the navigation: each module has VIEWS and ACTIONS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txmsg.ops.console.actions import ConsoleAction
from txmsg.ops.console.pages import (
    alerts,
    audit,
    brokers,
    dead_letters,
    groups,
    halves,
    messages,
    mirrors,
    operations,
    overview,
    settings,
    topics,
)
from txmsg.ops.console.views import View

_MODULES: Final = (
    overview,
    topics,
    groups,
    dead_letters,
    halves,
    messages,
    brokers,
    mirrors,
    settings,
    alerts,
    audit,
    operations,
)

VIEWS: Final[Sequence[View]] = tuple(view for module in _MODULES for view in module.VIEWS)
ACTIONS: Final[Sequence[ConsoleAction]] = tuple(action for module in _MODULES for action in module.ACTIONS)
