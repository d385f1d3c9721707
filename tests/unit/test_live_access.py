"""Users and rules in a broker's memory: refreshes, and versions sent to servers that ask."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.closed_pool import closed_pool
from txmsg.administration.access import NewUser
from txmsg.broker.access import LiveAccess
from txmsg.broker.api.access import AccessApi
from txmsg.broker.store.users import Users
from txmsg.errors import BrokerUnavailable, MisuseError
from txmsg.wire.access.limits import NO_LIMITS
from txmsg.wire.access.snapshot import AccessSnapshot


class Database(Users):
    """A database of users with only a version."""

    def __init__(self) -> None:
        super().__init__(closed_pool())
        self.newest = 1
        self.is_away = False

    async def version(self) -> tuple[int, float]:
        if self.is_away:
            raise BrokerUnavailable("the database is away")
        return self.newest, 0.0

    async def snapshot(self) -> AccessSnapshot:
        return AccessSnapshot(version=self.newest)


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
async def live(database: Database) -> LiveAccess:
    live = LiveAccess(database, NO_LIMITS)
    await live.refresh_once()
    return live


async def test_a_snapshot_that_connections_missed_is_sent_again(live: LiveAccess, database: Database) -> None:
    told: list[int] = []

    def on_change() -> None:
        told.append(live.guard.snapshot.version)
        if len(told) == 1:
            raise ZeroDivisionError

    live.guard.on_change = on_change
    database.newest = 2
    with pytest.raises(ZeroDivisionError):
        await live.refresh_once()
    for _ in range(2):
        await live.refresh_once()
    assert told == [2, 2]


async def test_a_lower_version_is_sent_only_after_a_database_restore(live: LiveAccess, database: Database) -> None:
    database.is_away = True
    with pytest.raises(BrokerUnavailable):
        await live.changed_from(5, wait_s=0)
    database.is_away = False
    assert (await live.changed_from(5, wait_s=0)).version == 1
    database.newest = 5
    assert (await live.changed_from(5, wait_s=0)).version == 5


async def test_a_user_with_a_certificate_has_no_expiring_token(database: Database) -> None:
    users = AccessApi(database, None)
    with pytest.raises(MisuseError, match="give one of the two"):
        await users.create_user(
            NewUser(name="ada", certificate="ada.example", expires_at=datetime(2999, 1, 1, tzinfo=UTC))
        )
