"""The clients of a history: their requests, their repeats, and their record of the answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.model.broker import FENCE_ID, Broker, EndRequest, Problems, SendRequest
from tests.model.business import Business
from tests.model.history import Begin, Claim, Copy, Finish, Kind, RequestKind, Send, Tell
from tests.model.model import KNOWS_NOTHING, OK
from tests.model.scene import NOBODY, Scene
from txmsg.checker.ports import DueHalf
from txmsg.errors import TxmsgError
from txmsg.message import TransactionState

PAUSE_S = 0.002
_WORDS = {
    TransactionState.COMMIT: RequestKind.COMMIT,
    TransactionState.ROLLBACK: RequestKind.ROLLBACK,
    TransactionState.UNKNOWN: RequestKind.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request as it was first made, of which copies are exact repeats."""

    words: dict[int, RequestKind]
    """By transaction number."""
    request: SendRequest | EndRequest


class Clients:
    """All client processes of a scene. They keep the rules of txmsg/client/flows/flow.py: business begins only when the
    half was accepted, and ROLLBACK is said only when it was certainly not committed.
    """

    def __init__(self, scene: Scene, brokers: Sequence[Broker]) -> None:
        self.counts: Counter[str] = Counter()
        self.business = Business()
        self._scene = scene
        self._brokers = brokers
        self._asked: dict[int, _Asked] = {}
        self._accepted: set[int] = set()

    # ---- steps

    async def send(self, step: Send) -> None:
        crowd = self._scene.history.crowds[step.crowd]
        half = crowd.kind is not Kind.PLAIN
        fence_id = FENCE_ID.bytes if crowd.kind is Kind.FENCED else b""
        words = {each.number: RequestKind.HALF if half else RequestKind.PLAIN for each in crowd.transactions}
        asked = _Asked(words, SendRequest(half, fence_id, self._scene.columns(step.crowd)))
        self._asked[step.number] = asked
        replies = await self._repeat(asked, step.broker)
        self._accepted |= {number for number, reply in replies.items() if reply == OK}

    def begin(self, step: Begin) -> None:
        for number in self._numbers(step.crowd) & self._accepted:
            self.business.begin(self._scene.uuid(number))

    def finish(self, step: Finish) -> None:
        for number in self._numbers(step.crowd):
            commits = self._scene.transactions[number].commits
            if self.business.finish(self._scene.uuid(number), commit=commits):
                self._scene.committed(number)

    async def tell(self, step: Tell) -> None:
        words = {}
        for number in self._numbers(step.crowd) & self._accepted:
            known = TransactionState.UNKNOWN if step.doubtful else self.business.check(self._scene.uuid(number))
            words[number] = _WORDS[known]
        await self._end(step.number, words, step.broker)

    async def claim(self, step: Claim) -> None:
        crowd = self._scene.history.crowds[step.crowd]
        words = {each.number: word for each, word in zip(crowd.transactions, step.words, strict=True)}
        await self._end(step.number, words, step.broker)

    async def copy(self, step: Copy) -> None:
        """Send a copy of a request once, without waiting for the answer."""
        asked = self._asked.get(step.of)
        if asked is not None:
            self.counts["copies"] += 1
            await self._ask(asked, step.broker)

    def answer(self, half: DueHalf) -> TransactionState:
        """Answer a check from the fence, or by the listener without a fence."""
        number = self._scene.numbers.get(half.transaction_id)
        if number is None:
            return TransactionState.UNKNOWN  # of an abandoned history
        self.counts["checks"] += 1
        if half.fence_id is not None:
            return self.business.check(half.transaction_id)
        state = TransactionState.COMMIT if self._scene.transactions[number].commits else TransactionState.ROLLBACK
        self._scene.tell(number, _WORDS[state], NOBODY)
        return state

    # ---- requests

    def _numbers(self, crowd: int) -> set[int]:
        return {each.number for each in self._scene.history.crowds[crowd].transactions}

    async def _end(self, step: int, words: dict[int, RequestKind], broker: int) -> None:
        def ids(of: RequestKind) -> tuple[bytes, ...]:
            return tuple(self._scene.ids[number] for number, word in words.items() if word is of)

        if words:
            request = EndRequest(ids(RequestKind.COMMIT), ids(RequestKind.ROLLBACK), ids(RequestKind.UNKNOWN))
            asked = self._asked[step] = _Asked(words, request)
            await self._repeat(asked, broker)

    async def _repeat(self, asked: _Asked, broker: int) -> dict[int, str]:
        """Send the whole request to the brokers in turn until every transaction has an answer."""
        while True:
            replies = await self._ask(asked, broker)
            if KNOWS_NOTHING.isdisjoint(replies.values()):
                return replies
            broker = (broker + 1) % len(self._brokers)
            self.counts["repeats"] += 1
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, asked: _Asked, broker: int) -> dict[int, str]:
        """Send the request once and return the answer of each transaction; a failed call is the answer of all."""
        scene = self._scene
        self.counts["requests"] += 1
        all_told = [scene.tell(number, word, broker) for number, word in asked.words.items()]
        try:
            problems: Problems = await self._brokers[broker].ask(asked.request)
        except TxmsgError as exc:
            problems = {scene.ids[number]: exc for number in asked.words}
        for told in all_told:
            problem = problems.get(scene.ids[told.transaction])
            scene.answered(told, OK if problem is None else problem.code)
            self.counts[told.reply] += 1
        return {told.transaction: told.reply for told in all_told}
