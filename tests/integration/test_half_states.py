"""The transition table of half messages, executed: each state meets each event in a real database.

Stored and in check are one state of the database; only the checking broker distinguishes them. An illegal event
changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Final

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from txmsg import Message, Producer, TransactionId, TransactionState
from txmsg.broker.store.connect import open_pool
from txmsg.broker.store.halves import HalfMessages
from txmsg.checker.policy import TRANSITIONS, HalfEvent, HalfState, ParkReason
from txmsg.checker.ports import Askable
from txmsg.client import Half
from txmsg.errors import OutcomeConflict
from txmsg.message import new_transaction_id

S, E = HalfState, HalfEvent
MESSAGE: Final = Message("t", b"half")
_ANSWERS_S: Final = 600.0
_SEEN: Final = """
select coalesce(
    (select case when parked_reason is null then 'stored' else 'parked' end from txmsg.half_message
      where transaction_id = %(id)s and not decided),
    (select 'committed' from txmsg.message where transaction_id = %(id)s),
    (select 'rolled back' from txmsg.rolled_back where transaction_id = %(id)s),
    'gone')
"""


class HalvesInStates:
    """Half messages of a Notify database and the events that they can meet."""

    def __init__(self, url: str, producer: Producer) -> None:
        self._url, self._producer = url, producer

    def in_state(self, state: HalfState) -> Half:
        """Return a new half message in this state."""
        half = self._producer.half([MESSAGE], transaction_id=new_transaction_id())
        for event in _WAYS[state]:
            assert self.meets(half, event)
        return half

    def state_of(self, half: Half) -> HalfState:
        """Return the state of a half by the tables; one in check is stored there."""
        with psycopg.connect(self._url, connect_timeout=10) as connection:
            row = connection.execute(_SEEN, {"id": half.transaction_id}).fetchone()
        assert row is not None
        return HalfState(row[0])

    def meets(self, half: Half, event: HalfEvent) -> bool:
        """Return True if the event was accepted, as reported to its caller."""
        try:
            return _EVENTS[event](self, half)
        except OutcomeConflict:
            return False

    def store(self, half: Half) -> bool:
        return self._producer.half([MESSAGE], transaction_id=half.transaction_id) == half

    def end(self, half: Half, outcome: TransactionState) -> bool:
        self._producer.end(half, outcome)
        return True

    def claim(self, half: Half) -> bool:
        async def claimed(halves: HalfMessages) -> bool:
            asked = [Askable(group=self._producer.group, fence_id=None, interval_s=_ANSWERS_S)]
            found = await halves.claim_due(asked, limit=100, since=None)
            return half.transaction_id in {each.transaction_id for each in found.halves}

        with psycopg.connect(self._url, connect_timeout=10) as connection:  # the time of its first check comes
            connection.execute(
                "update txmsg.half_message set next_check_at = now() where transaction_id = %s and checks = 0 "
                "and next_check_at is not null",
                [half.transaction_id],
            )
        return self._run(claimed)

    def leave_unknown(self, half: Half) -> bool:
        """Do nothing: the check loop writes nothing then, as the claim has set the time of the next check."""
        return self.state_of(half) is not S.STORED or self._is_claimed(half)

    def park(self, half: Half) -> bool:
        async def parked(halves: HalfMessages) -> bool:
            await halves.park([TransactionId(half.transaction_id)], ParkReason.CHECKS_USED_UP)
            return True

        return self._run(parked) and self.state_of(half) is S.PARKED

    def resume(self, half: Half) -> bool:
        async def resumed(halves: HalfMessages) -> bool:
            return await halves.resume(transaction_id=half.transaction_id) == 1

        return self._run(resumed)

    def _is_claimed(self, half: Half) -> bool:
        with psycopg.connect(self._url, connect_timeout=10) as connection:
            row = connection.execute(
                "select checks > 0 from txmsg.half_message where transaction_id = %s", [half.transaction_id]
            ).fetchone()
        return row is not None and bool(row[0])

    def _run(self, work: Callable[[HalfMessages], object]) -> bool:
        async def on_pool() -> bool:
            async with open_pool(self._url) as pool:
                return bool(await work(HalfMessages(pool)))  # type: ignore[misc]

        return asyncio.run(on_pool())


_EVENTS: Final[Mapping[HalfEvent, Callable[[HalvesInStates, Half], bool]]] = {
    E.STORE: HalvesInStates.store,
    E.COMMIT: partial(HalvesInStates.end, outcome=TransactionState.COMMIT),
    E.ROLLBACK: partial(HalvesInStates.end, outcome=TransactionState.ROLLBACK),
    E.ASK_NOW: partial(HalvesInStates.end, outcome=TransactionState.UNKNOWN),
    E.CLAIM: HalvesInStates.claim,
    E.UNKNOWN: HalvesInStates.leave_unknown,
    E.PARK: HalvesInStates.park,
    E.RESUME: HalvesInStates.resume,
}
_WAYS: Final[Mapping[HalfState, tuple[HalfEvent, ...]]] = {
    S.STORED: (),
    S.IN_CHECK: (E.CLAIM,),
    S.PARKED: (E.PARK,),
    S.COMMITTED: (E.COMMIT,),
    S.ROLLED_BACK: (E.ROLLBACK,),
}


@pytest.fixture(scope="module")
def lives(
    postgres: PostgresServer, notify_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HalvesInStates]:
    url = postgres.create_database("half_states", template=notify_template)
    log = tmp_path_factory.mktemp("half_states") / "broker.log"
    with BrokerProcess(url, "--first-check-s", "600", log=log) as broker, Producer(broker.address, group="p") as own:
        yield HalvesInStates(url, own)
    postgres.drop_database("half_states")


@pytest.mark.parametrize(
    ("state", "event"), [pytest.param(*pair, id=" meets ".join(each.value for each in pair)) for pair in product(S, E)]
)
def test_every_state_and_event_changes_the_database_as_the_table_says(
    lives: HalvesInStates, state: HalfState, event: HalfEvent
) -> None:
    half = lives.in_state(state)
    becomes = TRANSITIONS[state].get(event)
    assert lives.meets(half, event) is (becomes is not None)
    expected = state if becomes is None else becomes
    assert lives.state_of(half) is (S.STORED if expected is S.IN_CHECK else expected)
