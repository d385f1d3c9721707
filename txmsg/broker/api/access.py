"""The service Access: checks users, tokens and keys, makes tokens, and tells a connection its identity."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from txmsg.administration.access import (
    AlterUser,
    ConnectionIdentity,
    CreateAccessKey,
    DeleteUser,
    IssuedToken,
    LimitUser,
    NewUser,
    Revoke,
    RotateToken,
    UserDetails,
    UserPage,
    UserQuery,
)
from txmsg.administration.ask import Nothing
from txmsg.broker.access import LiveAccess
from txmsg.broker.store.users import ROLES_MAX, Users
from txmsg.errors import MisuseError, shown
from txmsg.wire.access.keys import KEY_ID, SEALED_SIZE_BYTES_MAX
from txmsg.wire.access.limits import checked_limits
from txmsg.wire.access.principal import check_role_name, check_user_name
from txmsg.wire.access.tokens import new_token
from txmsg.wire.server_call import ServerCall, with_call
from txmsg.wire.users import WatchAccess, WatchedAccess, WatchedRule

_CERTIFICATE_LENGTH_MAX: Final = 300


class AccessApi:
    """The service Access. live: applies each change before it is answered; other brokers apply it soon.

    live is None without authentication.
    """

    def __init__(self, users: Users, live: LiveAccess | None) -> None:
        self._users = users
        self._live = live

    @with_call
    async def who_am_i(self, _: Nothing, call: ServerCall[Nothing, ConnectionIdentity]) -> ConnectionIdentity:
        principal = call.connection.principal
        expires_at = principal.expires_at
        return ConnectionIdentity(
            name=principal.name,
            roles=sorted(principal.roles),
            authentication=self._live is not None,
            credential=principal.credential,
            expires_at=None if expires_at == math.inf else datetime.fromtimestamp(expires_at, UTC),
            rules=principal.rights.rules,
        )

    async def list_users(self, query: UserQuery) -> UserPage:
        if query.name is not None:
            return UserPage(users=[await self._users.show(query.name)])
        return await self._users.list(query)

    async def create_user(self, new: NewUser) -> IssuedToken:
        check_user_name(new.name)
        _check_roles(new.roles)
        new = replace(new, certificate=new.certificate or None)
        if new.certificate is not None:
            _check_certificate(new.certificate)
            if new.expires_at is not None:
                raise MisuseError("a user with a certificate gets no token that could expire: give one of the two")
        token = None if new.certificate else new_token()
        user = await self._users.create(new, token)
        await self._apply_change()
        # The only time that the token is shown: the database has its hash.
        return IssuedToken(user=user, token=None if token is None else token.text)

    async def alter_user(self, change: AlterUser) -> UserDetails:
        _check_roles(change.add_roles)
        _check_certificate(change.certificate or "")
        user = await self._users.alter(change)
        await self._apply_change()
        return user

    async def rotate_token(self, request: RotateToken) -> IssuedToken:
        token = new_token()
        user = await self._users.rotate(request, token)
        await self._apply_change()
        return IssuedToken(user=user, token=token.text)

    async def create_access_key(self, key: CreateAccessKey) -> UserDetails:
        if re.fullmatch(KEY_ID, key.id) is None or not 0 < len(key.sealed_secret) <= SEALED_SIZE_BYTES_MAX:
            raise MisuseError(
                f"access key {shown(key.id)} is not one as `txmsg user access-key create` and `import` give, with 1 to "
                f"{SEALED_SIZE_BYTES_MAX} bytes of an encrypted secret"
            )
        user = await self._users.add_access_key(key)
        await self._apply_change()
        return user

    async def revoke(self, request: Revoke) -> UserDetails:
        if request.token is not None and request.access_key is not None:
            raise MisuseError("a token and an access key are revoked one after the other: name one of them")
        user = await self._users.revoke(request)
        await self._apply_change()
        return user

    async def limit_user(self, change: LimitUser) -> UserDetails:
        user = await self._users.limit(replace(change, limits=checked_limits(change.limits)))
        await self._apply_change()
        return user

    async def delete_user(self, request: DeleteUser) -> Nothing:
        await self._users.delete(request.name)
        await self._apply_change()
        return Nothing()

    @with_call  # a call that waits ends when its rule is taken away
    async def watch(self, request: WatchAccess, _: ServerCall[WatchAccess, WatchedAccess]) -> WatchedAccess:
        if self._live is None:
            raise MisuseError("this broker has no authentication: start it with --auth")
        snapshot = await self._live.changed_from(request.version, request.wait_ms / 1000)
        return WatchedAccess(
            version=snapshot.version,
            users=list(snapshot.users.values()),
            tokens=list(snapshot.credentials.values()),
            rules=[
                WatchedRule(subject=rule.subject, action=rule.action, kind=rule.kind, pattern=rule.pattern)
                for rule in snapshot.rules.all
            ],
            access_keys=list(snapshot.access_keys.values()) if request.access_keys else (),
        )

    async def _apply_change(self) -> None:
        if self._live is not None:
            await self._live.apply_change()


def _check_roles(roles: Sequence[str]) -> None:
    if len(roles) > ROLES_MAX:
        raise MisuseError(f"{len(roles)} roles are too many: a user has at most {ROLES_MAX}")
    for role in roles:
        check_role_name(role)


def _check_certificate(name: str) -> None:
    if len(name) > _CERTIFICATE_LENGTH_MAX or not name.isprintable() or name != name.strip():
        raise MisuseError(
            f"certificate={shown(name)} is not the name in a certificate: give at most {_CERTIFICATE_LENGTH_MAX} "
            "printable characters"
        )
