"""Verifies a finished demo of the example. Reads only the databases, and shares no code with the rest.

    python -m examples.user_registration.verify postgresql://user@host:port/postgres

prints one JSON object. What is compared:

- every user who is in `users` has exactly one effect in each subscriber's database;
- nobody else has any;
- whoever was told "registered" is in `users`, whoever was told "refused" is not, and nobody is who never asked;
- the Notify database holds no half message any more.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo

EFFECT_TABLES = {
    "red_packet": "red_packets",
    "alipay_account": "accounts",
    "legality_check": "checks",
    "social_import": "imports",
}
"""Subscriber, whose database has the same name, to the table of its effects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of the databases. All is well if missing, duplicated, phantom and in_doubt are 0."""

    users: int
    """Users who asked to be registered."""
    committed: int
    """Rows in `users`."""
    rolled_back: int
    """Users who asked and have no row."""
    in_doubt: int
    """Transactions whose half message is still there."""
    effects: dict[str, int]
    """Rows of effects, by subscriber."""
    missing: int
    """Effects that a user lacks, and users told that they are registered without a row."""
    duplicated: int
    """Effects beyond the first one of a user."""
    phantom: int
    """Effects without a user, and users who never asked or were refused."""
    findings: list[str] = field(default_factory=list)
    """A sentence for each violation, at most 50."""

    @property
    def clean(self) -> bool:
        return not (self.missing or self.duplicated or self.phantom or self.in_doubt)


def verify(server: str) -> Verdict:
    """Compare the databases of the PostgreSQL server at the conninfo or URL `server`; its database name is ignored."""
    attempts = _answers(server)
    users = set(_user_ids(server, "users", "select id from users"))
    missing = duplicated = phantom = 0
    findings: list[str] = []
    effects: dict[str, int] = {}

    for group, table in EFFECT_TABLES.items():
        count = Counter(_user_ids(server, group, f"select user_id from {table}"))
        effects[group] = count.total()
        for user_id in users - count.keys():
            missing += 1
            findings.append(f"{group}: user {user_id} has no effect")
        for user_id, n in count.items():
            if n > 1:
                duplicated += n - 1
                findings.append(f"{group}: {user_id} has {n} effects")
            if user_id not in users:
                phantom += n
                findings.append(f"{group}: {user_id} has an effect and is no user")

    for user_id, answer in attempts.items():
        if answer == "registered" and user_id not in users:
            missing += 1
            findings.append(f"users: {user_id} was told of success and is not there")
        if answer == "refused" and user_id in users:
            phantom += 1
            findings.append(f"users: {user_id} was refused and is there")
    for user_id in users - attempts.keys():
        phantom += 1
        findings.append(f"users: {user_id} never asked")

    in_doubt = _halves(server)
    if in_doubt:
        findings.append(f"Notify database: {in_doubt} transactions are undecided")
    return Verdict(
        users=len(attempts),
        committed=len(users),
        rolled_back=len(attempts.keys() - users),
        in_doubt=in_doubt,
        effects=effects,
        missing=missing,
        duplicated=duplicated,
        phantom=phantom,
        findings=findings[:50],
    )


def _connect(server: str, database: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(make_conninfo(server, dbname=database), connect_timeout=10)


def _user_ids(server: str, database: str, query: str) -> list[UUID]:
    with _connect(server, database) as connection:
        return [UUID(str(row[0])) for row in connection.execute(query.encode())]


def _answers(server: str) -> dict[UUID, str]:
    """Return who asked, and the answers: "registered", "refused", or "nothing" (the service died)."""
    with _connect(server, "attempts") as connection:
        return {UUID(str(row[0])): str(row[1]) for row in connection.execute("select user_id, answer from attempt")}


def _halves(server: str) -> int:
    with _connect(server, "notify") as connection:
        row = connection.execute("select count(distinct transaction_id) from txmsg.half_message").fetchone()
    assert row is not None
    return int(str(row[0]))


if __name__ == "__main__":
    verdict = verify(sys.argv[1])
    print(json.dumps(asdict(verdict)))
    sys.exit(0 if verdict.clean else 1)
