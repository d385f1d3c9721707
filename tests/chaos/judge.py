"""The invariants of a run under kills, pauses and partitions. Pure: knows journals and rows, no process.

  I1  a message is in the log, and delivered, if and only if its local transaction committed
  I2  what was acknowledged is in the log
  I3  each message was handled by each group that wants it, or is its dead letter; with the inbox it took effect once
  I4  offsets are 0, 1, 2, ...; nothing is there twice; what was acknowledged before another began comes before it
  I5  messages of one ordering key are in the log, and are handled, in the order in which they were stored; each group
      has one at a time
  I6  no outcome turned: both never stand, and what the other one is told is refused
  I8  nothing is left over or passed over: undecided, parked, scheduled, waiting, retrying
  due no handler gets a message before it is due
  out no call that has an outbox is refused because brokers are away
  chain each order is paid and shipped once, in one transaction each: see chain_verdict.py
  live what waits goes on: see liveness.py

A copy may come back when its outcome is forgotten; brokers here remember longer than anything is on its way. What a
crash, a promotion or a restore may take away, `losses.py` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import inf
from typing import NamedTuple

from tests.chaos.history import (
    DURABILITY,
    EXACTLY_ONCE,
    RETRIES_MAX,
    VISIBILITY_TIMEOUT_S,
    Handling,
    Place,
    Record,
    Row,
    Seek,
    Sending,
    SendMethod,
    Sent,
)
from tests.chaos.losses import Losses

OUTCOME_MEMORY_S = 40.0
"""Minimum time for which brokers remember outcomes."""
SURE_FAILURES = frozenset({"broker_unavailable", "overloaded"})
"""Errors of a plain send that stored nothing."""
CHAIN = "chain"
LIVE = "live"
"""The only invariant that depends on time."""


class Violation(NamedTuple):
    invariant: str
    text: str


def judge(record: Record) -> list[Violation]:
    """Return all violations of a run."""
    rules: Sequence[tuple[str, Callable[[Record], Iterator[str]]]] = (
        ("I1", _delivered_if_and_only_if_committed),
        ("I2", _acknowledged_is_stored),
        ("I3", _handled_by_every_group),
        ("I3", _effects_once),
        ("I3", _seeks_are_obeyed),
        ("I4", _dense_and_once),
        ("I4", _in_order_of_acknowledgement),
        ("I4", _delivered_as_stored),
        ("I5", _stored_in_causal_order),
        ("I5", _handled_in_causal_order),
        ("I5", _one_at_a_time),
        ("I6", _outcomes_are_final),
        ("I8", _nothing_is_left_over),
        ("due", _not_before_it_is_due),
        ("out", _kept_when_brokers_are_away),
        (CHAIN, lambda record: iter(record.chain)),
        (LIVE, _nothing_stands),
    )
    return [Violation(invariant, text) for invariant, rule in rules for text in rule(record)]


def wants(topics: Mapping[str, str], row: Row) -> bool:
    """Return True if a group with these subscriptions must get this message."""
    return topics.get(row.topic) in ("*", row.tag)


# ---- I1, I2


def _delivered_if_and_only_if_committed(record: Record) -> Iterator[str]:
    there, losses = _numbers_in_log(record), Losses(record)
    held = {body.partition("/")[0] for body in (*record.undecided, *record.scheduled)}  # left over: I8
    for serial in there.keys() - record.sendings.keys():
        yield f"{serial} is in the log, and nobody sent it"
    for serial, sending in record.sendings.items():
        numbers, all_of_it = there.get(serial, set()), set(range(len(sending.messages)))
        lacks = {n for n in all_of_it - numbers if not losses.may_lack(sending, n)}
        if numbers - all_of_it:
            yield f"{serial} had {len(all_of_it)} messages, but {sorted(numbers)} are in the log"
        if sending.way is SendMethod.PLAIN:
            if numbers and sending.failed in SURE_FAILURES:
                yield f"{serial} failed with {sending.failed}, which says that nothing was stored, and is in the log"
            elif numbers and lacks and serial not in held:
                yield f"{serial} was sent as one, but only {sorted(numbers)} of {len(all_of_it)} are in the log"
        elif serial in record.committed:
            if lacks and serial not in held and not _was_undone(sending, losses):
                yield f"{serial} committed, but messages {sorted(lacks)} are lost"
        elif numbers and not (_was_told_commit(sending) and losses.may_differ(sending)):
            yield f"{serial} did not commit, but messages {sorted(numbers)} are in the log: phantoms"
        elif sending.way in {SendMethod.FENCED, SendMethod.KEPT} and sending.returned_at is not None:
            yield f"{serial} returned without an error, but its local transaction did not commit"
    bodies = {row.body for row in record.rows}
    for body in {each.body for each in record.handlings} - bodies:
        if not losses.may_be_forgotten(body):
            yield f"{body} was delivered, but is not in the log"


def _was_told_commit(sending: Sending) -> bool:
    """A sender told the other outcome too: it must be refused, unless the first one is lost."""
    return any(told.state == "commit" for told in sending.told)


def _was_undone(sending: Sending, losses: Losses) -> bool:
    """The sender told the other outcome too, and the server with the commit is lost: the rollback counts."""
    return any(told.state == "rollback" for told in sending.told) and losses.may_differ(sending)


def _acknowledged_is_stored(record: Record) -> Iterator[str]:
    there, losses = _numbers_in_log(record), Losses(record)
    held = {body.partition("/")[0] for body in record.scheduled}
    for serial, sending in record.sendings.items():
        lacks = set(range(len(sending.messages))) - there.get(serial, set())
        lacks = {n for n in lacks if not losses.may_lack(sending, n)}
        if lacks and sending.acknowledged_at() is not None and serial not in held and not _was_undone(sending, losses):
            yield f"{serial} was acknowledged, but messages {sorted(lacks)} are not in the log"


def _numbers_in_log(record: Record) -> Mapping[str, set[int]]:
    there: defaultdict[str, set[int]] = defaultdict(set)
    for row in record.rows:
        there[row.serial].add(row.n)
    return there


# ---- I3


def _handled_by_every_group(record: Record) -> Iterator[str]:
    done = {(each.group, each.body) for each in record.handlings if each.done}
    waiting = {(group, *place) for group, *place in record.retrying}
    for group, topics in record.groups.items():
        for row in record.rows:
            key = (group, *row.place)
            is_passed = not _waits(record, group, row)
            if wants(topics, row) and is_passed and (group, row.body) not in done and key not in record.dead | waiting:
                yield f"group {group} has passed {_at(row)}, which no handler of it has done"


def _waits(record: Record, group: str, row: Row) -> bool:
    """Return True if the group has not reached the message. Then it is left over: I8."""
    passed = record.cursors.get((group, row.topic, row.queue))
    return passed is None or passed.next_offset <= row.offset


def _effects_once(record: Record) -> Iterator[str]:
    bodies, losses = {row.body for row in record.rows}, Losses(record)
    places = _places(record, EXACTLY_ONCE)
    for body, count in record.effects.items():
        replays = sum(each.again and _covers(each, places[body]) for each in record.seeks if each.group == EXACTLY_ONCE)
        allowed = 1 + replays + ((EXACTLY_ONCE, body) in record.redriven)
        if count > allowed:
            asked = f", and was asked for {allowed} times" if allowed > 1 else ""
            yield f"{body} took effect {count} times in group {EXACTLY_ONCE}{asked}"
        if body not in bodies and not losses.may_be_forgotten(body):
            yield f"{body} took effect in group {EXACTLY_ONCE}, but is not in the log"
    done = {each.body for each in record.handlings if each.done and each.group == EXACTLY_ONCE}
    for body in done - record.effects.keys():
        yield f"{body} was handled by group {EXACTLY_ONCE}, but took no effect"


def _seeks_are_obeyed(record: Record) -> Iterator[str]:
    """Messages handled before a seek back are redelivered; unless the database itself lost data since."""
    for seek in record.seeks:
        if not seek.is_sure or any(loss.died > seek.begun for loss in record.losses):
            continue
        of_group = [each for each in record.handlings if each.group == seek.group]
        before = {each.body for each in of_group if each.done and each.ended is not None and each.ended < seek.begun}
        since = {each.body for each in of_group if each.got > seek.begun}
        for row in record.rows:
            is_dead = (seek.group, *row.place) in record.dead or (seek.group, row.body) in record.redriven
            if row.body in before and row.body not in since and _covers(seek, {row.place}) and not is_dead:
                yield f"group {seek.group} was sent back to {seek.place}, but {_at(row)} did not come again"


def _places(record: Record, group: str) -> Mapping[str, set[Place]]:
    """Return where each message is and was, as far as this group saw it."""
    found: defaultdict[str, set[Place]] = defaultdict(set)
    for row in record.rows:
        found[row.body].add(row.place)
    for each in record.handlings:
        if each.group == group:
            found[each.body].add(each.place)
    return found


def _covers(seek: Seek, places: set[Place]) -> bool:
    return any(place[:2] == seek.place[:2] and place[2] >= seek.place[2] for place in places)


# ---- I4


def _dense_and_once(record: Record) -> Iterator[str]:
    for (topic, queue), of_queue in groupby(record.rows, key=lambda row: (row.topic, row.queue)):
        rows = list(of_queue)
        begin = rows[0].offset if DURABILITY[topic] == "memory" else 0  # an in-memory queue restarts after a crash
        for expected, row in enumerate(rows, start=begin):
            if row.offset != expected:
                yield f"queue {queue} of {topic}: offset {row.offset} stands where {expected} should: a gap, or a copy"
                break
        for earlier, later in pairwise(rows):
            if abs(earlier.segment) > abs(later.segment):  # those in memory are counted downwards
                yield f"queue {queue} of {topic}: {_at(later)} is in an older segment than what comes before it"
            is_delayed = any(sent.delay_s for sent in _sent(record, later))
            if earlier.transaction_id == later.transaction_id and not is_delayed and earlier.n > later.n:
                yield f"queue {queue} of {topic}: message {later.n} of {later.serial} comes behind message {earlier.n}"
    seen: dict[tuple[str, int], Row] = {}
    for row in record.rows:
        first = seen.setdefault((row.transaction_id, row.n), row)
        if first is not row:
            yield f"{row.body} is in the log twice: at {_at(first)} and at {_at(row)}"


def _in_order_of_acknowledgement(record: Record) -> Iterator[str]:
    """No message was acknowledged before a message stored earlier in its queue was begun."""
    losses = Losses(record)
    for (topic, queue), rows in groupby(record.rows, key=lambda row: (row.topic, row.queue)):
        latest: Sending | None = None
        for row in rows:
            sending = record.sendings.get(row.serial)
            if sending is None or row.ordering_key or any(sent.delay_s for sent in sending.messages):
                continue  # it may be stored later than acknowledged: I5
            at = sending.acknowledged_at()
            if latest is not None and at is not None and at < latest.begun and not losses.may_differ(sending):
                yield f"queue {queue} of {topic}: {row.body} was acknowledged before {latest.serial} began: behind it"
            if latest is None or sending.begun > latest.begun:
                latest = sending


def _delivered_as_stored(record: Record) -> Iterator[str]:
    """A handler sees the message that is stored at its position: no other copy, and no other offset."""
    places: defaultdict[str, set[Place]] = defaultdict(set)
    for row in record.rows:
        places[row.body].add(row.shown_place)
    losses = Losses(record)
    for each in record.handlings:
        if each.place not in places[each.body] and not losses.may_be_elsewhere(each):
            yield f"{each.body} was delivered as {each.place}, and stands at {sorted(places[each.body])} of the log"


def _sent(record: Record, row: Row) -> Sequence[Sent]:
    sending = record.sendings.get(row.serial)
    return () if sending is None else sending.messages


# ---- I5


def _by_key(record: Record) -> Mapping[tuple[str, str], list[Row]]:
    """Return the rows of each topic and ordering key, in log order."""
    found: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in record.rows:
        if row.ordering_key:
            found[row.topic, row.ordering_key].append(row)
    return found


def _stored_in_causal_order(record: Record) -> Iterator[str]:
    losses = Losses(record)
    for row in record.rows:
        keys = [sent.ordering_key for sent in _sent(record, row)]
        if keys and row.n < len(keys) and keys[row.n] != row.ordering_key:
            yield f"{row.body} was sent with ordering key {keys[row.n]!r}, and is in the log with {row.ordering_key!r}"
    for (topic, key), rows in _by_key(record).items():
        if len({row.queue for row in rows}) > 1:
            yield f"key {key} of {topic} is in several queues: {sorted({row.queue for row in rows})}"
        latest: Sending | None = None
        for row in rows:
            sending = record.sendings.get(row.serial)
            if sending is None:
                continue
            at = sending.ordered_at()
            if latest is not None and at is not None and at < latest.begun and not losses.may_differ(sending):
                yield f"key {key}: {row.body} was stored before {latest.serial} began, and is in the log behind it"
            if latest is None or sending.begun > latest.begun:
                latest = sending


def _handled_in_causal_order(record: Record) -> Iterator[str]:
    """No handler gets a message before each earlier one of its key is done or is a dead letter."""
    was_dead = record.redriven.union(*(loss.dead for loss in record.losses))
    got: dict[tuple[str, str], float] = {}
    done: dict[tuple[str, str], float] = {}
    given_up: dict[tuple[str, str], float] = {}  # a dead letter from then on, perhaps redriven before anyone listed it
    for each in record.handlings:
        key = each.group, each.body
        got[key] = min(got.get(key, each.got), each.got)
        if each.ended is not None:
            if each.done:
                done[key] = min(done.get(key, each.ended), each.ended)
            elif each.attempt > RETRIES_MAX:
                given_up[key] = min(given_up.get(key, each.ended), each.ended)
    for (_, ordering_key), rows in _by_key(record).items():
        for group, topics in record.groups.items():
            for earlier, later in pairwise(row for row in rows if wants(topics, row)):
                first = got.get((group, later.body))
                if first is None or (group, *earlier.place) in record.dead or (group, earlier.body) in was_dead:
                    continue
                if first < min(done.get((group, earlier.body), inf), given_up.get((group, earlier.body), inf)):
                    yield f"key {ordering_key}: group {group} got {later.body} before it had done {earlier.body}"


def _one_at_a_time(record: Record) -> Iterator[str]:
    """A group does not handle two messages of one key at once; a dead process counts up to its last journal entry.

    What takes longer than half of its visibility timeout may be redelivered meanwhile: it is cut there. So
    it is where its group was sent back, which takes from consumers what they hold.
    """
    keys = {row.body: (row.topic, row.ordering_key) for row in record.rows if row.ordering_key}
    handlings: defaultdict[tuple[str, tuple[str, str]], list[Handling]] = defaultdict(list)
    for each in record.handlings:
        if each.body in keys:
            handlings[each.group, keys[each.body]].append(each)
    for (group, (_, ordering_key)), of_key in handlings.items():
        busy_until, holder = 0.0, ""
        for each in sorted(of_key, key=lambda each: each.got):
            if each.got < busy_until and each.body != holder:
                yield f"key {ordering_key}: group {group} had {holder} and {each.body} in its hands at once"
            ended = each.ended if each.ended is not None else record.last_words.get(each.process, each.got)
            sent_back = [seek.begun for seek in record.seeks if seek.group == group and seek.ended > each.got]
            until = min(ended, each.got + VISIBILITY_TIMEOUT_S / 2, *sent_back)
            if until > busy_until:
                busy_until, holder = until, each.body


# ---- I6


def _outcomes_are_final(record: Record) -> Iterator[str]:
    there = {*_numbers_in_log(record), *(body.partition("/")[0] for body in record.scheduled)}
    for row in record.rows:
        if row.transaction_id in record.rolled_back:
            yield f"{row.body} is in the log, and remembered as rolled back"
    losses = Losses(record)
    for serial, sending in record.sendings.items():
        if losses.may_differ(sending):
            continue
        finals = {each.state for each in sending.told if each.reply == "ok" and each.state != "unknown"}
        if len(finals) > 1:
            yield f"{serial}: commit and rollback were both answered OK"
        for told in sending.told:
            yield from (f"{serial}: {text}" for text in _wrong_answer(sending, told.state, told.reply, serial in there))
            is_early = told.ended is not None and told.ended - sending.begun < OUTCOME_MEMORY_S
            if told.reply == "outcome_expired" and is_early:
                yield f"{serial}: {told.state} was answered as no longer known, too early"


def _wrong_answer(sending: Sending, state: str, reply: str, is_in_log: bool) -> Iterator[str]:
    if reply == "ok" and state == "rollback" and is_in_log:
        yield "a rollback was answered OK, and it is in the log"
    if reply == "outcome_conflict" and (state == "commit") == is_in_log:
        yield f"{state} was refused for the other outcome, which does not stand"


# ---- I8


def _nothing_is_left_over(record: Record) -> Iterator[str]:
    for body, parked in record.undecided.items():
        yield f"{body} is undecided{f', parked: {parked}' if parked else ''}, though all can be asked"
    for body in record.scheduled:
        yield f"{body} still waits until it is due"
    ends: dict[tuple[str, int], int] = {}
    for row in record.rows:
        ends[row.topic, row.queue] = row.offset + 1
    for group, topics in record.groups.items():
        for (topic, queue), end in ends.items():
            passed = record.cursors.get((group, topic, queue))
            if topic not in topics:
                continue
            if passed is None or passed.next_offset < end:
                at = "nowhere" if passed is None else f"at {passed.next_offset} and {passed.beyond} beyond"
                yield f"group {group} is {at} in queue {queue} of {topic}, which ends at {end}"
            elif passed.next_offset > end:
                yield f"group {group} is at {passed.next_offset} in queue {queue} of {topic}, which ends at {end}"
    for group, *place in record.retrying:
        yield f"group {group} still retries {place}"


def _not_before_it_is_due(record: Record) -> Iterator[str]:
    for each in record.handlings:
        serial, _, n = each.body.partition("/")
        sending = record.sendings.get(serial)
        if sending is None or int(n) >= len(sending.messages):
            continue
        early_s = sending.begun_at + sending.messages[int(n)].delay_s - each.got_at
        early_s -= _ahead_s(record, sending.begun, each.got)
        if sending.messages[int(n)].delay_s and early_s > 0:
            yield f"{each.body} was delivered to group {each.group} {early_s:.3f} s before it was due"


def _ahead_s(record: Record, since: float, until: float) -> float:
    """Return how far the database clock, which decides what is due, can have run ahead since a message was sent."""
    offsets = [offset for at, offset in record.clock if since < at <= until]
    offsets += [offset for at, offset in record.clock if at <= since][-1:] or [0.0]
    return max(offsets) - min(offsets)  # a delay counts by that clock from when it was stored


def _kept_when_brokers_are_away(record: Record) -> Iterator[str]:
    for serial, sending in record.sendings.items():
        if sending.way is SendMethod.KEPT and sending.failed in SURE_FAILURES:
            yield f"{serial} was refused with {sending.failed}, and has an outbox"


def _nothing_stands(record: Record) -> Iterator[str]:
    for what, for_s, until_s, bound_s in record.stands:
        yield f"{what} stood for {for_s:.0f} s, until second {until_s:.0f} of the run: {bound_s:.0f} s are the most"


def _at(row: Row) -> str:
    return f"{row.body} at offset {row.offset} of queue {row.queue} of {row.topic} (segment {row.segment})"
