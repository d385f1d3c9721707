"""Users of brokers and their tokens, by the service Access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from txmsg.access.keys import KeyFile, NewAccessKey, new_access_key
from txmsg.access.rules import Rule
from txmsg.administration.ask import Ask, moment
from txmsg.errors import MisuseError
from txmsg.message import us_of_datetime
from txmsg.wire.rules import unpack_rule
from txmsg.wire.v1 import access_pb2 as pb
from txmsg.wire.v1 import access_rpc


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, without its secret. expires_at None: never."""

    id: str
    created_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """An access key, without its secret."""

    id: str
    created_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user, and its tokens and access keys, the newest first.

    certificate: the name in client certificates that stand for it.
    """

    name: str
    roles: Sequence[str]
    certificate: str | None
    created_at: datetime | None
    limits: Mapping[str, float]
    """Its own; 0: no limit."""
    tokens: Sequence[Token]
    access_keys: Sequence[AccessKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPage:
    """Users by name. next: what names the page after this one; None for the last one."""

    users: Sequence[User]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a connection is. authentication: whether the server requires it; if not, everybody may do everything.

    rules: that allow it something, with those of its roles.
    """

    name: str
    roles: Sequence[str]
    authentication: bool
    credential: str
    expires_at: datetime | None
    rules: Sequence[Rule]


class UserAdministration:
    """What `txmsg user` does. Calls block. Raises the errors of errors.py."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def who_am_i(self) -> Identity:
        """Who the broker takes us for."""
        reply = self._ask(access_rpc.Access.who_am_i, pb.WhoAmIRequest())
        return Identity(
            name=reply.name,
            roles=list(reply.roles),
            authentication=reply.authentication,
            credential=reply.credential,
            expires_at=moment(reply.expires_at_us),
            rules=[unpack_rule(rule) for rule in reply.rules],
        )

    def list(self, limit: int, *, after: str = "", contains: str = "") -> UserPage:
        """The first users by name that come after this one, and have this in their names."""
        reply = self._ask(
            access_rpc.Access.list_users, pb.ListUsersRequest(limit=limit, after=after, contains=contains)
        )
        return UserPage(users=[_user(each) for each in reply.users], next=reply.next or None)

    def show(self, name: str) -> User:
        """One of them. Raises MisuseError."""
        if not name:
            raise MisuseError("the name of a user is not empty: give one that `txmsg user list` shows")
        return _user(self._ask(access_rpc.Access.list_users, pb.ListUsersRequest(name=name)).users[0])

    def create(
        self, name: str, *, roles: Sequence[str] = (), certificate: str = "", expires_at: datetime | None = None
    ) -> tuple[User, str]:
        """A new user and its token, which nobody can see again; with a certificate it needs none, and has ""."""
        request = pb.CreateUserRequest(name=name, roles=roles, certificate=certificate, expires_at_us=_us(expires_at))
        reply = self._ask(access_rpc.Access.create_user, request)
        return _user(reply.user), reply.token

    def alter(
        self,
        name: str,
        *,
        add_roles: Sequence[str] = (),
        remove_roles: Sequence[str] = (),
        certificate: str | None = None,
    ) -> User:
        """Changes roles and certificate. None: it stays; "": it has none."""
        request = pb.AlterUserRequest(name=name, add_roles=add_roles, remove_roles=remove_roles)
        if certificate is not None:
            request.certificate = certificate
        return _user(self._ask(access_rpc.Access.alter_user, request).user)

    def rotate(self, name: str, *, expires_at: datetime | None = None) -> tuple[User, str]:
        """Another token: the one before stays valid, an older one does not."""
        request = pb.RotateTokenRequest(name=name, expires_at_us=_us(expires_at))
        reply = self._ask(access_rpc.Access.rotate_token, request)
        return _user(reply.user), reply.token

    def create_access_key(self, name: str, file: KeyFile) -> tuple[User, NewAccessKey]:
        """An access key, whose secret nobody can see again without the file. Raises MisuseError if it has two."""
        return self.import_access_key(name, new_access_key(), file)

    def import_access_key(self, name: str, key: NewAccessKey, file: KeyFile) -> tuple[User, NewAccessKey]:
        """The same of one that is there already. Raises MisuseError also if somebody has it."""
        request = pb.CreateAccessKeyRequest(name=name, id=key.id, sealed_secret=file.seal(key, name))
        return _user(self._ask(access_rpc.Access.create_access_key, request).user), key

    def revoke(self, name: str, *, token: str = "", access_key: str = "") -> User:
        """Takes away one token or access key by its id; without either all of the user, and its certificate."""
        request = pb.RevokeRequest(name=name, token=token, access_key=access_key)
        return _user(self._ask(access_rpc.Access.revoke, request).user)

    def limit(self, name: str, limits: Mapping[str, float], *, others_default: bool = False) -> User:
        """Sets what it may take of a server; 0: no limit. others_default: it keeps no other limits of its own."""
        request = pb.LimitUserRequest(name=name, limits=limits, others_default=others_default)
        return _user(self._ask(access_rpc.Access.limit_user, request).user)

    def delete(self, name: str) -> None:
        """Deletes a user with its tokens and rules."""
        self._ask(access_rpc.Access.delete_user, pb.DeleteUserRequest(name=name))


def _us(at: datetime | None) -> int:
    return 0 if at is None else us_of_datetime(at)


def _user(user: pb.AccessUser) -> User:
    return User(
        name=user.name,
        roles=list(user.roles),
        certificate=user.certificate or None,
        created_at=moment(user.created_at_us),
        limits=dict(sorted(user.limits.items())),
        tokens=[
            Token(id=each.id, created_at=moment(each.created_at_us), expires_at=moment(each.expires_at_us))
            for each in user.tokens
        ],
        access_keys=[AccessKey(id=each.id, created_at=moment(each.created_at_us)) for each in user.access_keys],
    )
