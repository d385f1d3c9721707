"""The service Access: users, and who a connection is. Decides nothing."""

from __future__ import annotations

import math
from datetime import datetime

from txmsg.access.keys import AccessKey
from txmsg.access.principal import Principal
from txmsg.access.snapshot import AccessSnapshot
from txmsg.broker.access import LiveAccess, UserDirectory
from txmsg.broker.store.users import UserRow
from txmsg.errors import MisuseError
from txmsg.message import datetime_of_us, us_of_datetime
from txmsg.wire.rules import pack_rule
from txmsg.wire.server_call import ServerCall, with_call
from txmsg.wire.v1 import access_pb2 as pb

_WAIT_S_MAX = 300.0
_LIMIT_MAX = 1000


class AccessApi:
    """The service Access. live: None without authentication."""

    def __init__(self, users: UserDirectory, live: LiveAccess | None) -> None:
        self._users = users
        self._live = live

    @with_call
    async def who_am_i(self, _: pb.WhoAmIRequest, call: ServerCall[pb.WhoAmIRequest, pb.WhoAmIReply]) -> pb.WhoAmIReply:
        return who_am_i(call.connection.principal, authentication=self._live is not None)

    async def list_users(self, request: pb.ListUsersRequest) -> pb.ListUsersReply:
        if request.name:
            return pb.ListUsersReply(users=[_user(await self._users.show(request.name))])
        limit = min(request.limit or _LIMIT_MAX, _LIMIT_MAX)
        rows = await self._users.list(limit + 1, after=request.after, contains=request.contains)
        return pb.ListUsersReply(
            users=[_user(row) for row in rows[:limit]], next=rows[limit - 1].name if len(rows) > limit else ""
        )

    async def create_user(self, request: pb.CreateUserRequest) -> pb.CreateUserReply:
        row, token = await self._users.create(
            request.name, request.roles, request.certificate, _time(request.expires_at_us)
        )
        return pb.CreateUserReply(user=_user(row), token=token)

    async def alter_user(self, request: pb.AlterUserRequest) -> pb.AlterUserReply:
        certificate = request.certificate if request.HasField("certificate") else None
        row = await self._users.alter(
            request.name, add=request.add_roles, remove=request.remove_roles, certificate=certificate
        )
        return pb.AlterUserReply(user=_user(row))

    async def rotate_token(self, request: pb.RotateTokenRequest) -> pb.RotateTokenReply:
        row, token = await self._users.rotate(request.name, _time(request.expires_at_us))
        return pb.RotateTokenReply(user=_user(row), token=token)

    async def revoke(self, request: pb.RevokeRequest) -> pb.RevokeReply:
        return pb.RevokeReply(user=_user(await self._users.revoke(request.name, request.token, request.access_key)))

    async def create_access_key(self, request: pb.CreateAccessKeyRequest) -> pb.CreateAccessKeyReply:
        key = AccessKey(id=request.id, user=request.name, sealed_secret=request.sealed_secret)
        return pb.CreateAccessKeyReply(user=_user(await self._users.add_access_key(key)))

    async def limit_user(self, request: pb.LimitUserRequest) -> pb.LimitUserReply:
        row = await self._users.limit(request.name, dict(request.limits), others_default=request.others_default)
        return pb.LimitUserReply(user=_user(row))

    async def delete_user(self, request: pb.DeleteUserRequest) -> pb.DeleteUserReply:
        await self._users.delete(request.name)
        return pb.DeleteUserReply()

    @with_call  # so that a call that waits ends when its rule is taken away
    async def watch(
        self, request: pb.WatchAccessRequest, _: ServerCall[pb.WatchAccessRequest, pb.WatchAccessReply]
    ) -> pb.WatchAccessReply:
        if self._live is None:
            raise MisuseError("this broker has no authentication: start it with --auth")
        snapshot = await self._live.changed_from(request.version, min(request.wait_ms / 1000, _WAIT_S_MAX))
        return _watched(snapshot, with_access_keys=request.access_keys)


def who_am_i(principal: Principal, *, authentication: bool) -> pb.WhoAmIReply:
    """What a server says of a connection's principal."""
    return pb.WhoAmIReply(
        name=principal.name,
        roles=sorted(principal.roles),
        authentication=authentication,
        credential=principal.credential,
        expires_at_us=_us(principal.expires_at),
        rules=map(pack_rule, principal.rights.rules),
    )


def _us(seconds: float) -> int:
    return 0 if seconds == math.inf else int(seconds * 1_000_000)


def _time(us: int) -> datetime | None:
    return datetime_of_us(us) if us else None


def _user(row: UserRow) -> pb.AccessUser:
    return pb.AccessUser(
        name=row.name,
        roles=row.roles,
        certificate=row.certificate or "",
        created_at_us=us_of_datetime(row.created_at),
        limits=row.limits,
        tokens=[
            pb.AccessToken(
                id=token.id,
                created_at_us=us_of_datetime(token.created_at),
                expires_at_us=0 if token.expires_at is None else us_of_datetime(token.expires_at),
            )
            for token in row.tokens
        ],
        access_keys=[pb.AccessKey(id=key.id, created_at_us=us_of_datetime(key.created_at)) for key in row.access_keys],
    )


def _watched(snapshot: AccessSnapshot, *, with_access_keys: bool) -> pb.WatchAccessReply:
    return pb.WatchAccessReply(
        version=snapshot.version,
        users=[
            pb.AccessUser(name=user.name, roles=sorted(user.roles), certificate=user.certificate, limits=user.limits)
            for user in snapshot.users.values()
        ],
        tokens=[
            pb.WatchedToken(
                id=each.id, user=each.user, secret_sha256=each.secret_sha256, expires_at_us=_us(each.expires_at)
            )
            for each in snapshot.credentials.values()
        ],
        rules=map(pack_rule, snapshot.rules.all),
        access_keys=[
            pb.WatchedAccessKey(id=each.id, user=each.user, sealed_secret=each.sealed_secret)
            for each in snapshot.access_keys.values()
        ]
        if with_access_keys
        else (),
    )
