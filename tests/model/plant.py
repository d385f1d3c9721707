"""Planted defects, each of which the model must find. They exist only here: the product has no such flag.

Most change a word in the source of a function in one database; that word must be there. The others are a writer that
says what is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

from tests.model.model import Defect
from txmsg.broker.store.batch import AppliedBatch, WriteBatch
from txmsg.broker.writer import Writer, WriterRequest
from txmsg.checker import loop as loop_module
from txmsg.checker import policy as policy_module
from txmsg.checker.policy import CheckDecision, CheckPolicy
from txmsg.errors import BrokerUnavailable
from txmsg.message import TransactionState
from txmsg.runtime.postgres import connect

Change = tuple[str, str, str]
"""A function of the schema txmsg, a text in its source, and its replacement (everywhere)."""


@dataclass(frozen=True, slots=True)
class Plant:
    """A defect, described as a mistake that a person could make."""

    name: str
    defect: Defect
    changes: tuple[Change, ...] = ()
    code: Callable[[], AbstractContextManager[None]] = nullcontext

    def install(self, url: str) -> None:
        """Change the functions of a database. Raises AssertionError when the source no longer matches."""
        with connect(url) as connection:  # whatever the settings of the database are
            for function, old, new in self.changes:
                found = connection.execute(
                    "select pg_get_functiondef(oid) from pg_proc "
                    "where proname = %s and pronamespace = 'txmsg'::regnamespace",
                    (function,),
                ).fetchone()
                assert found is not None, f"plant {self.name}: there is no function txmsg.{function}"
                assert old in found[0], f"plant {self.name}: txmsg.{function} does not hold {old!r} any more"
                connection.execute(found[0].replace(old, new).encode())


@contextmanager
def _cut_means_done() -> Iterator[None]:
    """Treat a batch whose connection broke as written."""

    async def apply(self: Writer, batch: WriteBatch, give_up_at: float) -> AppliedBatch:
        try:
            return await original(self, batch, 0.0)
        except BrokerUnavailable:
            return AppliedBatch()

    original = Writer._apply
    with patch.object(Writer, "_apply", apply):
        yield


@contextmanager
def _answered_too_early() -> Iterator[None]:
    """Answer a request when its batch is sent, not when it is written."""

    async def settle(self: Writer, batch: WriteBatch, works: list[WriterRequest]) -> None:
        for work in works:
            if not work.done.done():
                work.done.set_result({})
        await original(self, batch, works)

    original = Writer._settle
    with patch.object(Writer, "_settle", settle):
        yield


@contextmanager
def _doubt_means_commit() -> Iterator[None]:
    """Commit when a check is answered UNKNOWN."""

    def decide(policy: CheckPolicy, checks: int, answer: TransactionState) -> CheckDecision:
        return original(policy, checks, TransactionState.COMMIT if answer is TransactionState.UNKNOWN else answer)

    original = policy_module.decide_after_answer
    with patch.object(loop_module, "decide_after_answer", decide):
        yield


_MEMORY = "m.segment in (p_segment, p_previous, v_memory_open, v_memory_previous)"

_HALF_MEMORY = """
            select m.transaction_id from txmsg.message m
             where m.segment in (p_segment, p_previous, v_memory_open, v_memory_previous)
               and m.transaction_id = any(p_half_id)
            union all
            select r.transaction_id from txmsg.rolled_back r
             where r.segment in (p_segment, p_previous) and r.transaction_id = any(p_half_id)
            union all
            select s.transaction_id from txmsg.scheduled s where s.transaction_id = any(p_half_id)
            union all
            select unnest(v_held)"""

_QUEUE_LOCKS = """perform pg_advisory_xact_lock(7702, l.lock)
           from (select distinct q % 1024 as lock from unnest(v_queues) q order by 1) l;"""

_LOSERS_DROPPED = tuple(
    ("apply_batch", f"from {rows}\n", f"from {rows} on conflict do nothing\n")
    for rows in ("incoming i", "gone g", "fresh f")
)

PLANTS = (
    # ---- lost
    Plant(
        "a broker goes on with what it read before the database went back",
        Defect.LOST,
        (("require_incarnation", "if txmsg.current", "if false and txmsg.current"),),
    ),
    Plant("a broken connection is taken for written", Defect.LOST, code=_cut_means_done),
    Plant("answered before it is written", Defect.LOST, code=_answered_too_early),
    Plant(
        "no queue lock, and the loser of an offset is dropped",
        Defect.LOST,
        (
            ("apply_batch", _QUEUE_LOCKS, "null;"),
            *_LOSERS_DROPPED,
        ),
    ),
    Plant(
        "the end of a queue is looked up before its lock, and the loser of an offset is dropped",
        Defect.LOST,
        (
            (
                "apply_batch",
                _QUEUE_LOCKS,
                "select array_agg(coalesce((select max(m.queue_offset) + 1 from txmsg.message m "
                "where m.segment = p_segment and m.queue = q), (select b.base from txmsg.segment_base b "
                f"where b.segment = p_segment and b.queue = q), 0) order by q) into v_bases from unnest(v_queues) q; "
                f"{_QUEUE_LOCKS}",
            ),
            (
                "apply_batch",
                "into v_bases, v_stepped",
                "into v_placed_offsets, v_stepped",
            ),
            *_LOSERS_DROPPED,
        ),
    ),
    Plant(
        "only the first message of a transaction is committed",
        Defect.LOST,
        (
            ("apply_batch", "from incoming i\n", "from incoming i where i.n = 0 or i.lane = 1\n"),
            ("apply_batch", "from gone g\n", "from gone g where g.n = 0\n"),
        ),
    ),
    # ---- duplicated
    Plant(
        "a late copy of a half is looked up in the open segment only",
        Defect.DUPLICATED,
        (
            (
                "apply_batch",
                f"{_MEMORY}\n               and m.transaction_id = any(p_half_id)",
                "m.segment = p_segment and m.transaction_id = any(p_half_id)",
            ),
        ),
    ),
    Plant(
        "a plain send is not looked up in the previous segment",
        Defect.DUPLICATED,
        (
            (
                "apply_batch",
                f"{_MEMORY}\n                   and m.transaction_id = any(p_plain_id)",
                "m.segment = p_segment and m.transaction_id = any(p_plain_id)",
            ),
        ),
    ),
    Plant(
        "late copies are not removed",
        Defect.DUPLICATED,
        (("apply_batch", "delete from txmsg.half_message h where h.transaction_id = any(v_done) and", "-- "),),
    ),
    Plant(
        "late copies are looked for before the insert that may wait, not after it",
        Defect.DUPLICATED,
        (
            (
                "apply_batch",
                "insert into txmsg.half_message as h",
                f"select array_agg(d.transaction_id) into v_known_ids from ({_HALF_MEMORY}) d;\n"
                "insert into txmsg.half_message as h",
            ),
            (
                "apply_batch",
                f"select array_agg(distinct d.transaction_id) into v_done from ({_HALF_MEMORY}) d;",
                "v_done := v_known_ids;",
            ),
        ),
    ),
    # ---- reordered
    Plant(
        "an earlier undecided half does not hold back the later ones of its ordering key",
        Defect.REORDERED,
        (
            (
                "free_of_keys",
                "h.order_seq < coalesce(k.blocked_at, 9223372036854775807)",
                "(h.decided or h.transaction_id in (select unnest(p_commit)))",
            ),
        ),
    ),
    Plant(
        "a batch places messages from the youngest to the oldest",
        Defect.REORDERED,
        (("apply_batch", "order by i.lane, i.order_seq, i.seq", "order by i.lane, i.order_seq desc, i.seq desc"),),
    ),
    Plant(
        "a batch places messages by id",
        Defect.REORDERED,
        (("apply_batch", "order by i.lane, i.order_seq, i.seq", "order by i.transaction_id desc, i.n"),),
    ),
    Plant(
        "ordered halves are moved in the order of their ids",
        Defect.REORDERED,
        (("apply_batch", "order by i.lane, i.order_seq, i.seq", "order by i.lane, i.transaction_id, i.n"),),
    ),
    # ---- phantom
    Plant(
        "UNKNOWN delivers",
        Defect.PHANTOM,
        (
            ("apply_batch", "any(v_commit || v_free_ids)\n", "any(v_commit || v_free_ids || p_check)\n"),
            ("apply_batch", "any(v_commit)\n", "any(v_commit || p_check)\n"),
        ),
    ),
    Plant("a check answered UNKNOWN commits", Defect.PHANTOM, code=_doubt_means_commit),
    # ---- gap
    Plant(
        "offsets are counted over all queues of a batch",
        Defect.GAP,
        tuple(("apply_batch", f"over (partition by {row}.queue order by", "over (order by") for row in "igf"),
    ),
    Plant(
        "a new segment starts one too far",
        Defect.GAP,
        (("rotate", "m.queue_offset + 1", "m.queue_offset + 2"),),
    ),
    Plant(
        "a queue that slept through a segment starts anew",
        Defect.GAP,
        (("rotate", "b.base from txmsg.segment_base", "0 from txmsg.segment_base"),),
    ),
    Plant(
        "a batch does not hold off the rotation",
        Defect.GAP,
        (("apply_batch", "perform pg_advisory_xact_lock_shared(7701, 0);", "null;"),),
    ),
    # ---- turned
    Plant(
        "a rollback after the commit is answered OK",
        Defect.TURNED,
        (("apply_batch", "if v_count < cardinality(p_rollback) then", "if false then"),),
    ),
    Plant(
        "a rollback is not remembered",
        Defect.TURNED,
        (("apply_batch", "from gone g where g.n = 0 order by 2", "from gone g where false order by 2"),),
    ),
    Plant(
        "rollbacks are remembered in the open segment only",
        Defect.TURNED,
        (("apply_batch", "r.segment in (p_segment, p_previous)", "r.segment = p_segment"),),
    ),
)
"""Two or more for each kind."""


def chosen(name: str) -> tuple[Plant, ...]:
    """Return the plants of a kind ("lost"), of a name, or "all"."""
    found = tuple(each for each in PLANTS if name in ("all", each.defect.value, each.name))
    if not found:
        kinds = ", ".join(dict.fromkeys(each.defect.value for each in PLANTS))
        raise ValueError(f"no planted defect is called {name!r}: say all, one of {kinds}, or a name")
    return found
