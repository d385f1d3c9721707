"""Checks of the options of producers and consumers. Knows no network."""

from __future__ import annotations

from txmsg.checker.listener import CheckMessageListener
from txmsg.errors import MisuseError, shown
from txmsg.runtime.user_function import check_takes


def check_listener_of(listener: CheckMessageListener | None) -> CheckMessageListener | None:
    """The listener if its `check` can be asked; else MisuseError, for an answer that never comes loses no message but
    leaves it in doubt."""
    if listener is None:
        return None
    if isinstance(listener, type):
        raise MisuseError(f"check_listener is the class {listener.__name__}: give an instance")
    check = getattr(listener, "check", None)
    if check is None:
        raise MisuseError(
            f"check_listener {shown(listener)} has no method check(message): give a CheckMessageListener, such as "
            "FenceCheckListener(engine)"
        )
    check_takes("check_listener's", check, "message")
    return listener
