"""Invariants of the chain at the end, by plain SQL over its three databases, and its figures. Pure.

The rows of all three are copied into one database in memory, where each rule is a query that finds what breaks it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

STEPS: Final = ("order", "payment", "shipping")
"""In the order of the chain. Each is a service, its consumer group, and the table of its effects."""


class Written(NamedTuple):
    """A row written by a step."""

    order_id: str
    amount: int
    at: float
    """Time by the wall clock of the machine."""
    attempt: str
    """Transaction id of the message that it sent."""


class SentOn(NamedTuple):
    """A message of a step."""

    step: str
    order_id: str
    attempt: str


_RULES: Final[Mapping[str, str]] = {
    "order {0} was written {1} times by {2}": """
        select order_id, count(*), step from done group by step, order_id having count(*) > 1""",
    "order {0} was sent on {1} times by {2}": """
        select order_id, count(*), step from sent group by step, order_id having count(*) > 1""",
    "order {0} has no row of {1}": """
        select o.order_id, s.step from done o cross join step s
         where o.step = 'order'
           and not exists (select * from done d where d.step = s.step and d.order_id = o.order_id)
           and not exists (select * from lost l join done d using (step, order_id, attempt)
                             join step before using (step)
                            where l.order_id = o.order_id and before.n < s.n)""",
    "order {0} has a row of {1} and none of {2}": """
        select d.order_id, d.step, before.step
          from done d join step s using (step) join step before on before.n = s.n - 1
         where not exists (select * from done e where e.step = before.step and e.order_id = d.order_id)""",
    "order {0} is worth {1}, and {2} in {3}": """
        select o.order_id, o.amount, d.amount, d.step from done o join done d using (order_id)
         where o.step = 'order' and d.amount <> o.amount""",
    "order {0} was sent on by {1} in attempt {2}, which has no row of it": """
        select s.order_id, s.step, s.attempt from sent s left join done d using (step, order_id, attempt)
         where d.step is null""",
    "order {0} was not sent on by {1} in attempt {2}, which has a row of it": """
        select d.order_id, d.step, d.attempt from done d left join sent s using (step, order_id, attempt)
          left join lost l using (step, order_id, attempt)
         where s.step is null and l.step is null""",
}
"""Violations of each rule. `lost`: messages lost with a database, by the evidence of losses.py."""


def wrong(
    done: Mapping[str, Sequence[Written]], sent: Sequence[SentOn], lost: Collection[SentOn] = ()
) -> Iterator[str]:
    """Return all violations. done: rows by step. sent: messages of the log. lost: messages lost with a database."""
    with sqlite3.connect(":memory:") as database:
        database.execute("create table step (step text, n int)")
        database.execute("create table done (step text, order_id text, amount int, attempt text)")
        database.execute("create table sent (step text, order_id text, attempt text)")
        database.execute("create table lost (step text, order_id text, attempt text)")
        database.execute("create index done_by_order on done (order_id, step)")
        database.execute("create index sent_by_order on sent (order_id, step)")
        database.executemany("insert into step values (?, ?)", [(step, n) for n, step in enumerate(STEPS)])
        rows = [(step, row.order_id, row.amount, row.attempt) for step, of_step in done.items() for row in of_step]
        database.executemany("insert into done values (?, ?, ?, ?)", rows)
        database.executemany("insert into sent values (?, ?, ?)", sent)
        database.executemany("insert into lost values (?, ?, ?)", lost)
        for text, query in _RULES.items():
            for row in database.execute(query):
                yield text.format(*row)
    database.close()


def figures(done: Mapping[str, Sequence[Written]], lost: Collection[SentOn]) -> Counter[str]:
    """Return rows of each step, shipping time of orders, orders per minute, and the longest gap."""
    counts = Counter({f"chain_{step}": len(done[step]) for step in STEPS})
    ordered = {row.order_id: row.at for row in done["order"]}
    counts["chain_lost"] = len({each.order_id for each in lost} & ordered.keys() - _ids(done["shipping"]))
    waits_s = sorted(row.at - ordered[row.order_id] for row in done["shipping"] if row.order_id in ordered)
    if waits_s:
        shipped = sorted(row.at for row in done["shipping"])
        counts["chain_ms_p50"] = round(1000 * waits_s[len(waits_s) // 2])
        counts["chain_ms_p99"] = round(1000 * waits_s[len(waits_s) * 99 // 100])
        counts["chain_per_minute"] = round(60 * len(shipped) / max(shipped[-1] - min(ordered.values()), 1.0))
        counts["chain_gap_ms"] = round(1000 * max(b - a for a, b in pairwise([min(ordered.values()), *shipped])))
    return counts


def _ids(rows: Sequence[Written]) -> set[str]:
    return {row.order_id for row in rows}
