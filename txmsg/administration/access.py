"""Users of brokers, their tokens and access keys; and the identity of a connection.

The calls of servers without a database of users are in `txmsg/wire/users.py`.
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
    """A user, and its tokens and access keys, the newest first, including expired tokens.

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
    """The identity of a connection. authentication: the server requires it; otherwise every client may do everything.

    credential: the id of the token, or "certificate NAME". expires_at: of the token; None: never. rules: its own and
    those of its roles.
    """

    name: str
    roles: Sequence[str] = ()
    authentication: bool = False
    credential: str = ""
    expires_at: datetime | None = None
    rules: Sequence[Rule] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserQuery:
    """A query of users by name: the first ones after `after` whose names contain `contains`, case-insensitive.

    name: only this user; MisuseError if it does not exist.
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
    """A user to create, with a token unless it has a certificate. expires_at: of the token; None: never."""

    name: str
    roles: Sequence[str] = ()
    certificate: str | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A user with a new token, which cannot be shown again; None: it has a certificate, and needs no token."""

    user: UserDetails
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUser:
    """A change of roles and certificate. certificate None: unchanged; "": removed."""

    name: str
    add_roles: Sequence[str] = ()
    remove_roles: Sequence[str] = ()
    certificate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateToken:
    """A request for another token. Two are valid at a time: a third replaces the older one. expires_at None: never."""

    name: str
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAccessKey:
    """An access key for a user, who has two at most.

    sealed_secret: readable only with the key file, which no broker has.
    """

    name: str
    id: str
    sealed_secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """A revocation of one token or access key by its id; without either, of all of the user's, and its certificate."""

    name: str
    token: str | None = None
    access_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUser:
    """A change of a user's limits at servers; 0: no limit. others_default: its other limits return to the defaults.

    limits: of connections, requests_per_s, messages_per_s, in_flight_bytes, topics, groups.
    """

    name: str
    limits: Mapping[str, float] = field(default_factory=dict)
    others_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteUser:
    """A deletion of a user with its tokens and rules."""

    name: str


class AccessService:
    """The service Access, except its method Watch."""

    who_am_i: Final = Method("Access/WhoAmI", Nothing, ConnectionIdentity)
    list_users: Final = Method("Access/ListUsers", UserQuery, UserPage)
    create_user: Final = Method("Access/CreateUser", NewUser, IssuedToken)
    """Create a user. Not idempotent."""
    alter_user: Final = Method("Access/AlterUser", AlterUser, UserDetails)
    rotate_token: Final = Method("Access/RotateToken", RotateToken, IssuedToken)
    """Issue another token. Not idempotent."""
    create_access_key: Final = Method("Access/CreateAccessKey", CreateAccessKey, UserDetails)
    revoke: Final = Method("Access/Revoke", Revoke, UserDetails)
    limit_user: Final = Method("Access/LimitUser", LimitUser, UserDetails)
    delete_user: Final = Method("Access/DeleteUser", DeleteUser, Nothing)


def user_of(ask: AskBroker, name: str) -> UserDetails:
    """Return the user of this name. Raises MisuseError if there is none."""
    [user] = ask(AccessService.list_users, UserQuery(name=name)).users
    return user


def add_access_key(ask: AskBroker, name: str, key: NewAccessKey, file: KeyFile) -> UserDetails:
    """Give a user an access key. Its secret cannot be read again without the file.

    Raises MisuseError if the user has two, or another user has this one.
    """
    return ask(
        AccessService.create_access_key, CreateAccessKey(name=name, id=key.id, sealed_secret=file.seal(key, name))
    )
