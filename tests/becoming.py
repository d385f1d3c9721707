"""Run code of a test as another user. Needs root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NOBODY: Final = 65534


def why_not() -> str:
    """Return the reason why a test cannot become another user; "" if it can."""
    return "" if os.geteuid() == 0 else "only root becomes another user"


@contextmanager
def become(uid: int = NOBODY) -> Iterator[None]:
    """Run all threads of this process as this user, in its group, until the end of the block."""
    groups, gid, own_uid = os.getgroups(), os.getegid(), os.geteuid()
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(own_uid)
        os.setegid(gid)
        os.setgroups(groups)
