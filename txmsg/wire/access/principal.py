"""A principal: the authenticated user of a connection."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Final

from txmsg.errors import InvalidName, shown
from txmsg.wire.access.rules import ADMIN, ADMIN_RULES, Rights

__all__ = ["ANYONE", "NOBODY", "Principal", "check_role_name", "check_user_name"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,126}")


@dataclass(frozen=True, slots=True)
class Principal:
    """A user with its roles and rights, and the time at which its credential expires (seconds since 1970).

    credential: the public id of its token, "certificate NAME", or "access key ID". file: as `AccessSnapshot.file`.
    """

    name: str
    roles: frozenset[str] = frozenset()
    rights: Rights = field(default=Rights(()), compare=False, repr=False)
    credential: str = field(default="", compare=False)
    expires_at: float = field(default=math.inf, compare=False)
    file: str = field(default="", compare=False)

    @property
    def is_admin(self) -> bool:
        """True if it may do everything."""
        return ADMIN in self.roles


ANYONE: Final = Principal("anyone", frozenset({ADMIN}), Rights(ADMIN_RULES))
"""The principal of every connection to a server without authentication."""
NOBODY: Final = Principal("nobody")
"""The principal of a connection that has not authenticated yet, or was refused."""


def check_user_name(text: str) -> str:
    """Return `text` if a user may have this name. Raises InvalidName."""
    if text in {ANYONE.name, NOBODY.name}:
        raise InvalidName(f"user {shown(text)} is a reserved name: choose another one")
    return _check("user", text)


def check_role_name(text: str) -> str:
    """Return `text` if a role may have this name. Raises InvalidName."""
    return _check("role", text)


def _check(what: str, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise InvalidName(
            f"{what} {shown(text)} is not a valid name: use 1 to 127 of the characters A-Z a-z 0-9 . _ @ -, beginning "
            "with a letter or digit"
        )
    return text
