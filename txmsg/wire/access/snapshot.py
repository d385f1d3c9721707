"""Users, credentials and rules at one moment: everything that a guard decides by. Immutable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from txmsg.wire.access.keys import AccessKey
from txmsg.wire.access.rules import RuleSet

__all__ = ["AccessSnapshot", "Credential", "User"]


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user. certificate: the name in client certificates that stand for this user, "" for none."""

    name: str
    roles: frozenset[str] = frozenset()
    certificate: str = ""
    limits: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Fields of UserLimits in which it differs from the limits of all users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """The stored part of a token. expires_at: seconds since 1970."""

    id: str
    user: str
    secret_sha256: bytes = field(repr=False)
    expires_at: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSnapshot:
    """All users, credentials and rules. version: rises with each change of a database."""

    version: int = 0
    users: Mapping[str, User] = field(default_factory=dict)
    credentials: Mapping[str, Credential] = field(default_factory=dict)
    """Tokens by their public id."""
    access_keys: Mapping[str, AccessKey] = field(default_factory=dict)
    """Access keys by their id."""
    rules: RuleSet = field(default_factory=RuleSet)
    file: str = ""
    """The file in which users and rules are changed; "" if by `txmsg user` and `txmsg acl`."""
    certificates: Mapping[str, User] = field(init=False, repr=False)
    """Users by the name in their certificate."""

    def __post_init__(self) -> None:
        # An index made once: a login by certificate must not search all users.
        by_certificate = {user.certificate: user for user in self.users.values() if user.certificate}
        object.__setattr__(self, "certificates", by_certificate)
