"""Statements on users and their tokens, and the snapshot by which guards decide."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from datetime import datetime
from typing import Final

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from txmsg.administration.access import (
    AlterUser,
    CreateAccessKey,
    LimitUser,
    NewUser,
    Revoke,
    RotateToken,
    UserAccessKey,
    UserDetails,
    UserPage,
    UserQuery,
    UserToken,
)
from txmsg.broker.store import audit
from txmsg.broker.store.connect import Connection, Pool, notify, session
from txmsg.errors import MisuseError
from txmsg.wire.access.keys import AccessKey
from txmsg.wire.access.rules import RuleSet, known_rules
from txmsg.wire.access.snapshot import AccessSnapshot, Credential, User
from txmsg.wire.access.tokens import NewToken
from txmsg.wire.changes import State

NOTICE: Final = "access"
"""The kind of notice that announces a change."""
_SLOTS: Final = (1, 2)
ROLES_MAX: Final = 20
"""Maximum number of roles of a user; a CHECK states it, too."""
_USERS_MAX: Final = 10_000
"""Maximum number of users: each broker holds all of them in memory."""


class Users:
    """The users of one Notify database. Every method is its own transaction; changes notify the brokers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def version(self) -> tuple[int, float]:
        """Return the version of the newest change, and the database's time in seconds since 1970."""
        async with session(self._pool) as conn:
            row = await (await conn.execute(_VERSION)).fetchone()
            assert row is not None
            return row[0], row[1]

    async def snapshot(self) -> AccessSnapshot:
        """Return all users, tokens and rules as of one moment."""
        async with session(self._pool) as conn, conn.transaction():
            # One snapshot for all four statements: with READ COMMITTED a user's new rules could come with the roles
            # from before, and a guard would let a request pass that no state of the tables allows.
            await conn.execute("set transaction isolation level repeatable read, read only")
            row = await (await conn.execute(_VERSION)).fetchone()
            assert row is not None
            version = row[0]
            users = await (
                await conn.execute("select name, roles, certificate, limits from txmsg.access_user")
            ).fetchall()
            tokens = await (await conn.execute(_TOKENS)).fetchall()
            keys = await (await conn.execute("select id, user_name, sealed_secret from txmsg.access_key")).fetchall()
            rules = await (
                await conn.execute("select subject, action, kind, pattern from txmsg.access_rule")
            ).fetchall()
        return AccessSnapshot(
            version=version,
            users={
                name: User(name=name, roles=frozenset(roles), certificate=certificate or "", limits=limits)
                for name, roles, certificate, limits in users
            },
            credentials={
                id_: Credential(
                    id=id_,
                    user=user,
                    secret_sha256=secret_sha256,
                    expires_at=math.inf if expires_at is None else expires_at.timestamp(),
                )
                for id_, user, secret_sha256, expires_at in tokens
            },
            access_keys={
                id_: AccessKey(id=id_, user=user, sealed_secret=sealed_secret) for id_, user, sealed_secret in keys
            },
            rules=RuleSet(known_rules(rules)),
        )

    async def list(self, query: UserQuery) -> UserPage:
        """Return a page of users."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(UserDetails)) as cursor:
            await cursor.execute(_LIST, asdict(query))
            found = await cursor.fetchall()
            # A query per user, as a page is short and this is not a hot path.
            users = [await _with_tokens(conn, user) for user in found[: query.limit]]
        return UserPage(users=users, next=users[-1].name if len(found) > query.limit else None)

    async def show(self, name: str) -> UserDetails:
        """Return a user. Raises MisuseError if the user does not exist."""
        async with session(self._pool) as conn:
            return await _user(conn, name)

    async def create(self, new: NewUser, token: NewToken | None) -> UserDetails:
        """Create a user. Raises MisuseError if one has this name or certificate, or if there are too many."""
        name = new.name
        async with session(self._pool) as conn, conn.transaction():
            await begin_change(conn)
            cursor = await conn.execute("select count(*) from txmsg.access_user")
            row = await cursor.fetchone()
            assert row is not None
            if row[0] >= _USERS_MAX:
                raise MisuseError(f"there are {row[0]} users, as many as may be: delete some with `txmsg user delete`")
            made = await conn.execute(
                "insert into txmsg.access_user (name, roles) values (%s, %s) on conflict do nothing",
                (name, sorted(set(new.roles))),
            )
            if not made.rowcount:
                raise MisuseError(f"user {name} exists already: `txmsg user rotate {name}` makes another token")
            if new.certificate is not None:
                await _set_certificate(conn, name, new.certificate)
            if token is not None:
                await _add_token(conn, name, token, new.expires_at)
            user = await _user(conn, name)
            await audit.record(conn, "user.create", name, after=_state(user))
            return user

    async def alter(self, change: AlterUser) -> UserDetails:
        """Change roles and certificate. Raises MisuseError."""
        name = change.name
        async with session(self._pool) as conn, conn.transaction():
            await begin_change(conn)
            before = await _user(conn, name)
            roles = sorted({*before.roles, *change.add_roles} - set(change.remove_roles))
            if len(roles) > ROLES_MAX:
                raise MisuseError(f"user {name} would have {len(roles)} roles: at most {ROLES_MAX} are allowed")
            await conn.execute("update txmsg.access_user set roles = %s where name = %s", (roles, name))
            if change.certificate is not None:
                await _set_certificate(conn, name, change.certificate or None)
            return await _changed(conn, "user.alter", before)

    async def rotate(self, request: RotateToken, token: NewToken) -> UserDetails:
        """Add a token; it replaces the older one if there are two. Raises MisuseError."""
        async with session(self._pool) as conn, conn.transaction():
            await begin_change(conn)
            before = await _user(conn, request.name)
            await _add_token(conn, request.name, token, request.expires_at)
            return await _changed(conn, "user.rotate", before)

    async def add_access_key(self, key: CreateAccessKey) -> UserDetails:
        """Add an access key to its user. Raises MisuseError, also for a user with two: none may end unasked."""
        async with session(self._pool) as conn, conn.transaction():
            await begin_change(conn)
            before = await _user(conn, key.name)
            if len(before.access_keys) >= len(_SLOTS):
                raise MisuseError(
                    f"user {key.name} has {len(before.access_keys)} access keys, as many as may be: revoke one that is "
                    f"not in use any more with `txmsg user access-key revoke {key.name} ID`"
                )
            added = await conn.execute(
                _ADD_ACCESS_KEY,
                {"id": key.id, "name": key.name, "slots": list(_SLOTS), "sealed_secret": key.sealed_secret},
            )
            if not added.rowcount:
                raise MisuseError(
                    f"there is an access key {key.id} already, of this user or another one: revoke it first, or make "
                    "another one"
                )
            return await _changed(conn, "user.access_key", before)

    async def revoke(self, request: Revoke) -> UserDetails:
        """Remove one token or access key; without either, all of them and the certificate. Raises MisuseError."""
        name, token_id, access_key_id = request.name, request.token, request.access_key
        async with session(self._pool) as conn, conn.transaction():
            await begin_change(conn)
            before = await _user(conn, name)
            if token_id is not None and all(token.id != token_id for token in before.tokens):
                raise MisuseError(f"user {name} has no token with this id: `txmsg user show {name}` lists them")
            if access_key_id is not None and all(key.id != access_key_id for key in before.access_keys):
                raise MisuseError(f"user {name} has no access key with this id: `txmsg user show {name}` lists them")
            is_all = token_id is None and access_key_id is None
            if is_all:
                await _set_certificate(conn, name, None)
            which = {"name": name, "all": is_all, "token": token_id, "access_key": access_key_id}
            await conn.execute(
                "delete from txmsg.access_token where user_name = %(name)s and (%(all)s or id = %(token)s)", which
            )
            await conn.execute(
                "delete from txmsg.access_key where user_name = %(name)s and (%(all)s or id = %(access_key)s)", which
            )
            return await _changed(conn, "user.revoke", before)

    async def limit(self, change: LimitUser) -> UserDetails:
        """Set some of a user's limits. Raises MisuseError."""
        async with session(self._pool) as conn, conn.transaction():
            await begin_change(conn)
            before = await _user(conn, change.name)
            own = {**({} if change.others_default else before.limits), **change.limits}
            await conn.execute("update txmsg.access_user set limits = %s where name = %s", (Jsonb(own), change.name))
            return await _changed(conn, "user.limit", before)

    async def delete(self, name: str) -> None:
        """Delete a user with its tokens and rules: a later user of this name has none of them. Raises MisuseError."""
        async with session(self._pool) as conn, conn.transaction():
            await begin_change(conn)
            before = await _user(conn, name)
            await conn.execute("delete from txmsg.access_rule where subject = %s", (name,))
            await conn.execute("delete from txmsg.access_user where name = %s", (name,))
            await audit.record(conn, "user.delete", name, before=_state(before))


async def begin_change(conn: Connection) -> None:
    """Begin a change: others wait until it is committed, and brokers are notified then."""
    # The row is the lock: checks of counts in the same transaction hold, and versions rise in the order of commits.
    await conn.execute("update txmsg.access_version set version = version + 1")
    await notify(conn, NOTICE)


async def _changed(conn: Connection, action: str, before: UserDetails) -> UserDetails:
    """Write the change into the audit log, and return the user as it is now."""
    after = await _user(conn, before.name)
    await audit.record(conn, action, before.name, before=_state(before), after=_state(after))
    return after


def _state(user: UserDetails) -> State:
    return {
        "roles": list(user.roles),
        "certificate": user.certificate,
        "limits": user.limits,
        "tokens": {token.id: token.expires_at for token in user.tokens},
        "access_keys": [key.id for key in user.access_keys],
    }


async def _user(conn: Connection, name: str) -> UserDetails:
    async with conn.cursor(row_factory=class_row(UserDetails)) as cursor:
        await cursor.execute("select * from txmsg.access_user where name = %s", (name,))
        row = await cursor.fetchone()
    if row is None:
        raise MisuseError(
            f"there is no user {name}: `txmsg user list` shows all, `txmsg user create {name}` creates it"
        )
    return await _with_tokens(conn, row)


async def _with_tokens(conn: Connection, user: UserDetails) -> UserDetails:
    async with conn.cursor(row_factory=class_row(UserToken)) as cursor:
        await cursor.execute(
            "select id, created_at, expires_at from txmsg.access_token where user_name = %s order by created_at desc",
            (user.name,),
        )
        tokens = await cursor.fetchall()
    async with conn.cursor(row_factory=class_row(UserAccessKey)) as of_keys:
        await of_keys.execute(
            "select id, created_at from txmsg.access_key where user_name = %s order by created_at desc", (user.name,)
        )
        access_keys = await of_keys.fetchall()
    return replace(user, limits=dict(sorted(user.limits.items())), tokens=tokens, access_keys=access_keys)


async def _set_certificate(conn: Connection, name: str, certificate: str | None) -> None:
    try:
        await conn.execute("update txmsg.access_user set certificate = %s where name = %s", (certificate, name))
    except psycopg.errors.UniqueViolation as exc:
        raise MisuseError(f"the certificate {certificate} belongs to another user: choose another one") from exc


async def _add_token(conn: Connection, name: str, token: NewToken, expires_at: datetime | None) -> None:
    await conn.execute(_FREE_SLOT, {"name": name, "slots": list(_SLOTS)})
    added = await conn.execute(
        _ADD_TOKEN,
        {
            "id": token.id,
            "name": name,
            "slots": list(_SLOTS),
            "secret_sha256": token.secret_sha256,
            "expires_at": expires_at,
        },
    )
    if not added.rowcount:
        assert expires_at is not None
        raise MisuseError(f"a token that expires at {expires_at.isoformat()} could never be used: give a later time")


_VERSION = "select version, extract(epoch from clock_timestamp())::float8 from txmsg.access_version"

_TOKENS = """
select id, user_name, secret_sha256, expires_at from txmsg.access_token
"""

_LIST = """
select * from txmsg.access_user
 where name > %(after)s and strpos(lower(name), lower(%(contains)s)) > 0
 order by name limit %(limit)s + 1
"""

# Of a user who has as many as may be: one that has expired, else the older one.
_FREE_SLOT = """
delete from txmsg.access_token
 where id = (select id from txmsg.access_token where user_name = %(name)s
              order by coalesce(expires_at <= now(), false) desc, created_at limit 1)
   and (select count(*) from txmsg.access_token where user_name = %(name)s) >= cardinality(%(slots)s::int[])
"""

_ADD_TOKEN = """
insert into txmsg.access_token (id, user_name, slot, secret_sha256, expires_at)
select %(id)s, %(name)s, min(slot), %(secret_sha256)s, %(expires_at)s
  from unnest(%(slots)s::smallint[]) slot
 where slot not in (select t.slot from txmsg.access_token t where t.user_name = %(name)s)
having coalesce(%(expires_at)s::timestamptz > clock_timestamp(), true)
"""

_ADD_ACCESS_KEY = """
insert into txmsg.access_key (id, user_name, slot, sealed_secret)
select %(id)s, %(name)s, min(slot), %(sealed_secret)s
  from unnest(%(slots)s::smallint[]) slot
 where slot not in (select k.slot from txmsg.access_key k where k.user_name = %(name)s)
    on conflict (id) do nothing
"""
