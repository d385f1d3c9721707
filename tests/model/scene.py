"""The ids, contents, moments and record of one playing of a history."""

from __future__ import annotations

from uuid import UUID

from tests.model.history import TOPICS, History, RequestKind
from tests.model.model import Record, RequestRecord
from txmsg.message import new_transaction_id_bytes, now_us
from txmsg.message.columns import Columns

NOBODY = -1
"""The broker that receives the answer of a check: the one that made it."""


class Scene:
    """The transactions of a history with new ids, in their own topics. `moment` counts events."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.transactions = {each.number: each for crowd in history.crowds for each in crowd.transactions}
        self._judged = history.judged()
        self.record = Record({number: each for number, each in self.transactions.items() if number in self._judged})
        self.segment_max = 0
        """The newest segment that may be open now."""
        self.ids = {
            number: new_transaction_id_bytes()[:-1] + bytes([each.place]) for number, each in self.transactions.items()
        }
        self.numbers = {UUID(bytes=each): number for number, each in self.ids.items()}
        self.bodies = {
            (UUID(bytes=self.ids[number]), n): b"%d.%d" % (number, n)
            for number, each in self.transactions.items()
            for n in range(len(each.topics))
        }
        self.topics = [f"topic{topic}.{self.ids[1].hex()}" for topic in range(TOPICS)]
        self._born_at_us = now_us()
        self._moment = 0

    def _ordering_key(self, id_bytes: bytes, n: int) -> str:
        key = self.transactions[self.numbers[UUID(bytes=id_bytes)]].key(n)
        return f"key{key}" if key else ""

    def moment(self) -> int:
        self._moment += 1
        return self._moment

    def uuid(self, number: int) -> UUID:
        return UUID(bytes=self.ids[number])

    def tell(self, number: int, word: RequestKind, broker: int) -> RequestRecord:
        """Record that a broker is told something now; `answered` records its answer."""
        told = RequestRecord(number, word, broker, self.moment())
        if number in self._judged:
            self.record.told.append(told)
        return told

    def committed(self, number: int) -> None:
        """Record that a local transaction has committed now."""
        if number in self._judged:
            self.record.committed_at[number] = self.moment()

    def went_back(self) -> None:
        """Forget earlier reads: the database went back."""
        self.record.reads.clear()
        self.record.alive_again.clear()

    def answered(self, told: RequestRecord, reply: str) -> None:
        told.reply, told.ended, told.segment_max = reply, self.moment(), self.segment_max

    def columns(self, crowd: int) -> tuple[tuple[str, Columns], ...]:
        """Return the messages of a crowd, topic by topic; always the same."""
        batches = []
        for topic, name in enumerate(self.topics):
            rows = [
                (self.ids[each.number], n)
                for each in self.history.crowds[crowd].transactions
                for n, of in enumerate(each.topics)
                if of == topic
            ]
            if rows:
                columns = Columns(
                    transaction_id=[each for each, _ in rows],
                    n=[n for _, n in rows],
                    body=[self.bodies[UUID(bytes=each), n] for each, n in rows],
                    born_at_us=[self._born_at_us] * len(rows),
                    ordering_key=[self._ordering_key(each, n) for each, n in rows],
                )
                batches.append((name, columns))
        return tuple(batches)
