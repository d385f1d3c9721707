"""Users of brokers, their tokens and access keys; and who a connection is.

What servers without a database of users ask is in `txmsg/wire/users.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

from txmsg.administration.ask import AskBroker, Nothing
from txmsg.wire.access.keys import KeyFile, NewAccessKey
from txmsg.wire.access.rules import Rule
from txmsg.wire.method import Method
from txmsg.wire.values import NumberRange


@dataclass(frozen=True, slots=True, kw_only=True)
class UserToken:
    """A token, without its secret, which is not stored. expires_at None: never."""

    id: str
    created_at: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAccessKey:
    """An access key, without its secret."""

    id: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDetails:
    """A user, and its tokens and access keys, the newest first; tokens that have expired are there, too.

    certificate: the name in client certificates that stand for it; None: none. limits: its own, see LimitUser.
    """

    name: str
    roles: Sequence[str]
    certificate: str | None = None
    created_at: datetime
    limits: Mapping[str, float]
    tokens: Sequence[UserToken] = ()
    access_keys: Sequence[UserAccessKey] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionIdentity:
    """Who a connection is. authentication: whether the server requires it; if not, everybody may do everything.

    credential: the id of the token, or "certificate NAME". expires_at: of the token; None: never. rules: that allow it
    something, with those of its roles.
    """

    name: str
    roles: Sequence[str] = ()
    authentication: bool = False
    credential: str = ""
    expires_at: datetime | None = None
    rules: Sequence[Rule] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserQuery:
    """The first users by name that come after this one, and have this in their names, whatever the case.

    name: this one only; there is no such user: MisuseError.
    """

    limit: Annotated[int, NumberRange(1, 1000)] = 1000
    after: str = ""
    contains: str = ""
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPage:
    """Users by name. next: `after` of the page after this one; None for the last one."""

    users: Sequence[UserDetails]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUser:
    """A user to create, and its token, unless a certificate stands for it. expires_at: of the token; None: never."""

    name: str
    roles: Sequence[str] = ()
    certificate: str | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A user with a new token, which nobody can see again; None: it has a certificate, and needs none."""

    user: UserDetails
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUser:
    """Changes roles and certificate. certificate None: it stays; "": it has none."""

    name: str
    add_roles: Sequence[str] = ()
    remove_roles: Sequence[str] = ()
    certificate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateToken:
    """Another token. Two are valid at a time: a third one takes the place of the older one. expires_at None: never."""

    name: str
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAccessKey:
    """An access key of a user, who has two at most. sealed_secret: for those who have the key file; no broker has."""

    name: str
    id: str
    sealed_secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """Takes away one token or access key by its id; without either all of the user, and its certificate."""

    name: str
    token: str | None = None
    access_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUser:
    """Sets what a user may take of a server; 0: no limit. others_default: it keeps no other limits of its own.

    limits: of connections, requests_per_s, messages_per_s, in_flight_bytes, topics, groups.
    """

    name: str
    limits: Mapping[str, float] = field(default_factory=dict)
    others_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteUser:
    """Deletes a user with its tokens and rules."""

    name: str


class AccessService:
    """The service Access, but for its method Watch."""

    who_am_i: Final = Method("Access/WhoAmI", Nothing, ConnectionIdentity)
    list_users: Final = Method("Access/ListUsers", UserQuery, UserPage)
    create_user: Final = Method("Access/CreateUser", NewUser, IssuedToken)
    """Not idempotent."""
    alter_user: Final = Method("Access/AlterUser", AlterUser, UserDetails)
    rotate_token: Final = Method("Access/RotateToken", RotateToken, IssuedToken)
    """Not idempotent."""
    create_access_key: Final = Method("Access/CreateAccessKey", CreateAccessKey, UserDetails)
    revoke: Final = Method("Access/Revoke", Revoke, UserDetails)
    limit_user: Final = Method("Access/LimitUser", LimitUser, UserDetails)
    delete_user: Final = Method("Access/DeleteUser", DeleteUser, Nothing)


def user_of(ask: AskBroker, name: str) -> UserDetails:
    """The user of this name. Raises MisuseError if there is none."""
    [user] = ask(AccessService.list_users, UserQuery(name=name)).users
    return user


def add_access_key(ask: AskBroker, name: str, key: NewAccessKey, file: KeyFile) -> UserDetails:
    """Gives a user an access key, whose secret nobody can see again without the file.

    Raises MisuseError if the user has two, or somebody has this one.
    """
    return ask(
        AccessService.create_access_key, CreateAccessKey(name=name, id=key.id, sealed_secret=file.seal(key, name))
    )
