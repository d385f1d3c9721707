"""Verifies a finished lottery. Reads only the databases, and shares no code with the rest.

    python -m examples.lottery.verify postgresql://user@host:port/postgres 5000

prints one JSON object. The users are those with the numbers 1 to 5000. What is compared:

- each of them has entered, and has exactly one ticket;
- no ticket is for an entry that is not there: one that was rolled back, or a second try of who had entered;
- the Notify database holds no half message any more.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

FINDINGS_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of the databases. All is well if missing, duplicated, phantom and in_doubt are 0."""

    users: int
    """Users who entered."""
    tickets: int
    missing: int
    """Tickets that a user lacks, and users who are not entered."""
    duplicated: int
    """Tickets beyond the first one of a user."""
    phantom: int
    """Tickets for missing entries, and entries of people who never asked."""
    in_doubt: int
    """Transactions whose half message is still there."""
    findings: list[str] = field(default_factory=list)
    """A sentence for each violation."""

    @property
    def clean(self) -> bool:
        return not (self.missing or self.duplicated or self.phantom or self.in_doubt)


def verify(server: str, users: int) -> Verdict:
    """Compare the databases of the PostgreSQL server at the conninfo or URL `server`; its database name is ignored."""
    entries = _read(server, "activity", "select user_id, entry_id::text from entries")
    tickets = _read(server, "tickets", "select user_id, entry_id::text from tickets")
    [[in_doubt]] = _read(server, "notify", "select count(distinct transaction_id) from txmsg.half_message")
    return compare(users, dict(entries), tickets, in_doubt)


def compare(users: int, entries: Mapping[int, str], tickets: Sequence[tuple[int, str]], in_doubt: int) -> Verdict:
    """Compare entries and tickets. entries: by user. tickets: the user and the entry of each."""
    asked = range(1, users + 1)
    printed = Counter(user for user, _ in tickets)
    never_entered = [user for user in asked if user not in entries]
    without_ticket = [user for user in entries if user not in printed]
    more_than_one = {user: count for user, count in printed.items() if count > 1}
    without_entry = [user for user, entry in tickets if entries.get(user) != entry]
    strangers = [user for user in entries if user not in asked]
    findings = [
        *(f"user {user} has not entered" for user in never_entered),
        *(f"user {user} has entered and has no ticket" for user in without_ticket),
        *(f"user {user} has {count} tickets" for user, count in more_than_one.items()),
        *(f"user {user} has a ticket for an entry that is not there" for user in without_entry),
        *(f"user {user} has entered and never asked" for user in strangers),
        *([f"{in_doubt} transactions are undecided"] if in_doubt else []),
    ]
    return Verdict(
        users=len(entries),
        tickets=len(tickets),
        missing=len(never_entered) + len(without_ticket),
        duplicated=sum(more_than_one.values()) - len(more_than_one),
        phantom=len(without_entry) + len(strangers),
        in_doubt=in_doubt,
        findings=findings[:FINDINGS_MAX],
    )


def _read(server: str, database: str, query: str) -> list[Any]:
    with psycopg.connect(make_conninfo(server, dbname=database), connect_timeout=10) as connection:
        return connection.execute(query.encode()).fetchall()


if __name__ == "__main__":
    verdict = verify(sys.argv[1], int(sys.argv[2]))
    print(json.dumps(asdict(verdict)))
    sys.exit(0 if verdict.clean else 1)
