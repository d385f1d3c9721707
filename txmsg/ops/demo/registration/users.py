"""Records attempts to register and their outcomes. Every attempt is on disk before it is made. Knows no process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID, uuid4

import psycopg

Way = Literal["serial", "parallel", "message"]
Answer = Literal["registered", "refused", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationAttempt:
    """One person who wants to register. `refused`: the business will say no after it has written the row."""

    user_id: UUID
    email: str
    way: Way
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationOutcome:
    """The answer that a user got, and after how long. "nothing": the service died under the request."""

    attempt: RegistrationAttempt
    answer: Answer
    waited_ms: float


def invent(count: int, way: Way, *, refused_share: float) -> list[RegistrationAttempt]:
    """`count` people with fresh ids, about one in 1 / refused_share of whom the business will refuse, if any."""
    refused = set(random.sample(range(count), round(count * refused_share)))
    attempts = []
    for i in range(count):
        user_id = uuid4()
        domain = "disposable.example" if i in refused else "lasting.example"
        attempts.append(
            RegistrationAttempt(user_id=user_id, email=f"{user_id}@{domain}", way=way, refused=i in refused)
        )
    return attempts


class AttemptLog:
    """The demo's records, in a database of its own: attempts, written before the requests, and their answers."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(
            "create table if not exists attempt (user_id uuid primary key, email text not null, way text not null,"
            " answer text not null default 'nothing' check (answer in ('registered', 'refused', 'nothing')),"
            " waited_ms float8, written_at timestamptz not null default now())"
        )

    def write(self, attempts: Sequence[RegistrationAttempt]) -> None:
        """On disk when this returns."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(
                "insert into attempt (user_id, email, way) values (%s, %s, %s)",
                [(attempt.user_id, attempt.email, attempt.way) for attempt in attempts],
            )

    def write_answers(self, outcomes: Sequence[RegistrationOutcome]) -> None:
        """On disk when this returns."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(
                "update attempt set answer = %s, waited_ms = %s where user_id = %s",
                [(outcome.answer, outcome.waited_ms, outcome.attempt.user_id) for outcome in outcomes],
            )

    def close(self) -> None:
        self._connection.close()
