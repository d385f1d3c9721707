"""Applications and topics by their names, MODULE:NAME, as commands take them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from txmsg.client.app.application import Txmsg
from txmsg.errors import MisuseError, shown
from txmsg.message.typed.topic import Topic

_DEFAULT: Final = "app"


def load(name: str) -> Txmsg:
    """Return the application MODULE:NAME; NAME may be a path, or a function that returns it. Default: app.

    Modules of the current directory are found as `python -m` finds them. Raises MisuseError; errors of the module
    itself are raised as they are.
    """
    found = _named(name, "an application", "shop.main:app")
    if callable(found) and not isinstance(found, Txmsg):
        found = found()
    if not isinstance(found, Txmsg):
        raise MisuseError(f"{name} is {shown(found)}, not an application: name what Txmsg(...) returned")
    return found


def load_topics(name: str) -> Sequence[Topic[Any]]:
    """Return the topic MODULE:NAME, or those that the application MODULE:NAME declares. Raises as `load`."""
    found = _named(name, "a topic or an application", "shop.events:ORDERS")
    if isinstance(found, Txmsg):
        return found.topics
    if not isinstance(found, Topic):
        raise MisuseError(f"{name} is {shown(found)}, not a topic: name what Topic(...) or Txmsg(...) returned")
    return [found]


def _named(name: str, what: str, example: str) -> object:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    module, _, path = name.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise MisuseError(f"{shown(name)} does not name {what}: give MODULE:NAME, such as {example}")
    try:
        found: object = import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module}.".startswith(f"{exc.name}."):
            raise
        raise MisuseError(
            f"there is no module {shown(module)} for {what.partition(' ')[2]} {name}: give MODULE:NAME, and run the "
            f"command where `python -c 'import {module}'` works"
        ) from exc
    for part in (path or _DEFAULT).split("."):
        if not hasattr(found, part):
            raise MisuseError(f"{module} has no {shown(path or _DEFAULT)}: give MODULE:NAME, such as {example}")
        found = getattr(found, part)
    return found
