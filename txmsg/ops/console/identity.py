"""The user who has logged in, as brokers identify it by the token."""

from __future__ import annotations

from dataclasses import dataclass, field

from txmsg.administration.access import AccessService
from txmsg.administration.ask import Nothing
from txmsg.errors import Unauthenticated
from txmsg.ops.console.database import DatabaseBrokers
from txmsg.wire.access.rules import ADMIN, Rights
from txmsg.wire.access.tokens import is_token


@dataclass(frozen=True, slots=True, kw_only=True)
class UserIdentity:
    """A user with its roles and rights. Brokers decide by the rights; the console offers only what they allow."""

    name: str
    roles: frozenset[str] = frozenset()
    rights: Rights = field(default=Rights(()), compare=False, repr=False)

    @property
    def is_admin(self) -> bool:
        """True if the user may do everything."""
        return ADMIN in self.roles


async def who_am_i(database: DatabaseBrokers) -> UserIdentity | None:
    """Return the user of the connections' token; None if the brokers ask for none."""
    if not is_token(database.token):
        raise Unauthenticated("this is not a token of txmsg")
    reply = await database.ask_any(AccessService.who_am_i, Nothing())
    if not reply.authentication:
        return None
    return UserIdentity(name=reply.name, roles=frozenset(reply.roles), rights=Rights(reply.rules))
