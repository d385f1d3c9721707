"""One run: the cluster starts, is loaded and disturbed, recovers, and is judged."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from tests.chaos import chain, chain_verdict, tables
from tests.chaos.client import QUIET
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Faults
from tests.chaos.guests import GUEST_CONSUMER, GUEST_PRODUCER, JAVA, PYTHON, Guests
from tests.chaos.history import PULLED, PUSHED, Record, Recorder, SendMethod
from tests.chaos.journal import Journal, Journals
from tests.chaos.judge import Violation, judge
from tests.chaos.liveness import Standstill, Waiting, Watch
from tests.chaos.plan import (
    NEED_COMPILER,
    OF_GUEST_CONSUMERS,
    OF_GUEST_PRODUCERS,
    Cut,
    Done,
    Kind,
    Moment,
    faults,
    missing,
)
from tests.chaos.plant import Plant
from tests.preloaded import compiler

PATIENCE_S, PATIENCE_WITH_PLANT_S = 45.0, 6.0
"""Maximum seconds without progress after everything has recovered."""
STANDS_SHOWN = 3
_STEP_S = 0.5
_BACK_S = 3.0
_GUESTS_S_MAX = 300.0
_QUIET_S_MAX = 180.0
_AWAY_OF_PLANT_S = 5.0
_AFTER_FAULT_S = 10.0
"""A pause in sending or delivery that ends this long after a fault is attributed to it."""


@dataclass(slots=True)
class Result:
    """The result of a run."""

    seed: int
    duration_s: float
    counts: Counter[str] = field(default_factory=Counter)
    waits_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By kind of fault: the longest time without an acknowledged send, and without a delivery."""
    stands: Sequence[Standstill] = ()
    """Items that waited unchanged the longest, with seconds."""
    violations: Sequence[Violation] = ()
    missing: Sequence[str] = ()
    """Faults of which there were too few."""
    without: Collection[Kind] = ()
    """Faults that were left out."""
    guests: Sequence[str] = ()
    """Languages of the RocketMQ clients."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Notify databases."""
    kept: str = ""
    """Directory with journals and logs if there are violations."""

    @property
    def clean(self) -> bool:
        return not self.violations and not self.missing


def play(
    *,
    seed: int,
    duration_s: float,
    rate_per_s: float,
    plant: Plant | None = None,
    business_url: str | None = None,
    without: Collection[Kind] = (),
    is_hostile: bool = True,
    away_s: float = 0.0,
    guests: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Run everything in its own directory, which is kept only if there are violations and no defect was planted.

    away_s: at the end of the load no broker answers for so long, twice: cut off, and dead. Some calls have an outbox.
    guests: clients of RocketMQ in these languages send and receive, too, through gateways.
    """
    if plant is not None and plant.needs_away:
        away_s = away_s or _AWAY_OF_PLANT_S
    if plant is not None and plant.needs_guests:
        guests = guests or (PYTHON,)
    without = {*without, *(() if compiler() else NEED_COMPILER)}
    result = Result(seed, duration_s, without=without, guests=guests)
    directory = Path(tempfile.mkdtemp(prefix="txmsg-chaos-"))
    is_over = False
    try:
        directory.chmod(0o755)  # PostgreSQL may run as another user, and looks at its clock
        cluster = Cluster(
            directory,
            seed=seed,
            rate_per_s=rate_per_s,
            business_url=business_url,
            plant=plant,
            is_hostile=is_hostile,
            keeps=away_s > 0,
            guests=guests,
        )
        on_progress("starting all processes")
        with cluster:
            result.settings = cluster.settings
            patience_s = PATIENCE_WITH_PLANT_S if plant and not plant.stands else PATIENCE_S
            _play(cluster, result, patience_s, on_progress, away_s=away_s)
        is_over = result.clean or plant is not None
    except KeyboardInterrupt:
        is_over = True
        raise
    except Exception as exc:
        exc.add_note(f"seed {seed}, {duration_s:.0f} s; journals and logs: {directory}")
        raise
    finally:
        if is_over:
            shutil.rmtree(directory)
        else:
            for data in (*directory.glob("notify-*"), directory / "business"):
                shutil.rmtree(data, ignore_errors=True)
            result.kept = str(directory)
    return result


class _Look:
    """Reads new journal entries of the processes and reports progress."""

    def __init__(self, cluster: Cluster, on_progress: Callable[[str], None]) -> None:
        self.recorder = Recorder()
        self._journals = Journals(cluster.journals)
        self._on_progress = on_progress

    def __call__(self, what: str) -> None:
        for process, entry in self._journals.new():
            self.recorder.add(process, entry)
        self._on_progress(what)


def _play(
    cluster: Cluster, result: Result, patience_s: float, on_progress: Callable[[str], None], *, away_s: float
) -> None:
    look = _Look(cluster, on_progress)
    if cluster.guests is not None:
        _await_guests(cluster.guests, look)
    watch = Watch(lambda: _waiting(cluster))
    cluster.start_producers()
    watch.begin()
    try:
        disturbed, aways, left = _load_and_settle(cluster, result, patience_s, look, watch, away_s=away_s)
    finally:
        watch.end()
    record, done, began = look.recorder.record, disturbed.done, disturbed.began
    record.stands = watch.standing.over(away_s)
    result.stands = watch.standing.worst()[:STANDS_SHOWN]
    record.groups = cluster.groups
    record.crashes, record.losses = cluster.servers.crashes, cluster.servers.losses
    record.seeks, record.redriven, record.clock = disturbed.seeks, disturbed.redriven, disturbed.clock
    tables.read_notify(cluster.notify_url, record)
    tables.read_notify(cluster.other_url, record, is_other=True)
    tables.read_business(cluster.business_url, record)
    of_chain = _judge_chain(cluster, record)
    look("judging")
    result.violations = judge(record)
    if result.violations:
        _keep(record, result.violations, cluster.directory)
    has_guests = cluster.guests is not None
    result.missing = missing(done, began, result.duration_s, without=result.without, guests=has_guests)
    result.counts = _counts(look.recorder, done, left=left) + look.recorder.steps + of_chain
    result.counts["forgotten"] = cluster.servers.writes_forgotten
    if result.counts["power_loss"] and not result.counts["forgotten"]:
        result.missing = [*result.missing, "no loss of power took anything"]
    if has_guests:
        result.counts.update(_counts_of_guests(look.recorder))
    if cluster.guests is not None and JAVA in cluster.guests.languages:
        result.counts.update(_counts_of_java(cluster.guests, look.recorder, done))
    if away_s:
        result.counts += _kept_counts(record, aways)
        if not result.counts["kept_while_away"]:
            result.missing = [*result.missing, "no message was kept while all brokers were away"]
    result.waits_s = _waits(look.recorder, done, began + result.duration_s)


def _judge_chain(cluster: Cluster, record: Record) -> Counter[str]:
    """Add violations of the chain to the record; return its figures."""
    written, lost = cluster.chain.written(), chain.taken(record.losses)
    sent = [read for row in record.chain_rows if (read := chain.read_body(row.body)) and read.step in written]
    record.chain = list(chain_verdict.wrong(written, sent, lost))
    return chain_verdict.figures(written, lost)


def _load_and_settle(
    cluster: Cluster, result: Result, patience_s: float, look: _Look, watch: Watch, *, away_s: float
) -> tuple[Faults, list[tuple[float, float]], int]:
    """Apply load and all faults until everything has settled; return the amount of unfinished work."""
    disturbed = _disturb(cluster, result, look)
    aways = _be_away(cluster, away_s, look) if away_s else []
    watch.standing.calm()
    for process in cluster.processes():
        process.check()
    return disturbed, aways, _settle(cluster, patience_s, look)


def _waiting(cluster: Cluster) -> Iterator[Waiting]:
    yield from tables.waiting(cluster.notify_url, cluster.all_groups)
    yield from tables.waiting(cluster.other_url, cluster.groups, is_other=True)
    yield from tables.waiting_in_outbox(cluster.business_url)


def _await_guests(guests: Guests, look: _Look) -> None:
    """Wait until each RocketMQ client has taken part, so that a run on a busy machine proves something too."""
    deadline = time.monotonic() + _GUESTS_S_MAX
    while lacks := [what for what, has_been in _parts_of_guests(guests, look.recorder) if not has_been]:
        assert time.monotonic() < deadline, f"there is still {', '.join(lacks)}"
        for process in guests.processes():
            process.check()
        time.sleep(_STEP_S)
        look(f"waiting for clients of RocketMQ: {', '.join(lacks)}")


def _parts_of_guests(guests: Guests, recorder: Recorder) -> Iterator[tuple[str, bool]]:
    for producer in guests.producers:
        of_it = [each for each in recorder.record.sendings.values() if each.serial.startswith(f"{producer.name}.")]
        yield f"no plain message of {producer.name}", any(each.stored_at for each in of_it)
        yield f"no transaction of {producer.name}", any(each.acknowledged_at() for each in of_it if each.half_at)
    for consumer in guests.consumers:
        handled = [each for each in recorder.record.handlings if each.process.startswith(f"{consumer.name}.")]
        for group in (PUSHED, PULLED):
            yield f"no message of {group} at {consumer.name}", any(each.group == group for each in handled)
    yield "no answer to a check", recorder.checked.total() > 0


def _disturb(cluster: Cluster, result: Result, look: _Look) -> Faults:
    """Commit and repair all faults under load."""
    journal = Journal(cluster.journals / "faults.jsonl")
    guests = cluster.guests is not None
    plan = faults(result.seed, result.duration_s, without=result.without, guests=guests)
    with Faults(cluster, plan, journal, seed=result.seed) as disturbed:
        end = disturbed.began + result.duration_s
        while (left_s := end - time.monotonic()) > 0:
            disturbed.check()
            look(_line(look.recorder, disturbed.done, left_s))
            time.sleep(min(_STEP_S, left_s))
    journal.close()
    return disturbed


def _be_away(cluster: Cluster, away_s: float, look: _Look) -> list[tuple[float, float]]:
    """Make all brokers unreachable under load: first by the network, then by killing them. Return begin and end."""
    aways: list[tuple[float, float]] = []

    def wait(what: str, for_s: float) -> None:
        end = time.monotonic() + for_s
        while (left_s := end - time.monotonic()) > 0:
            look(f"{left_s:4.0f} s left: {what}; {len(look.recorder.record.sendings):,} sends")
            time.sleep(min(_STEP_S, left_s))

    began = time.monotonic()
    for broker in cluster.brokers:
        broker.clients.cut(Cut.LOST)
    wait("all brokers are cut off", away_s)
    aways.append((began, time.monotonic()))
    for broker in cluster.brokers:
        broker.clients.heal()
    wait("they are back", _BACK_S)
    began = time.monotonic()
    for broker in cluster.brokers:
        broker.process.check()
        broker.process.kill()
    wait("all brokers are dead", away_s)
    aways.append((began, time.monotonic()))
    for broker in cluster.brokers:
        broker.process.start()
    wait("they are back", _BACK_S)
    return aways


def _settle(cluster: Cluster, patience_s: float, look: _Look) -> int:
    """Start nothing new and let pending work finish; return the amount of unfinished work."""
    senders = [*cluster.all_producers(), *cluster.chain.services]
    for sender in senders:
        sender.tell(QUIET)
    names = {f"{each.name}.{each.lives - 1}" for each in senders}
    deadline = time.monotonic() + _QUIET_S_MAX
    while not names <= look.recorder.quiet:
        assert time.monotonic() < deadline, f"these do not come to an end: {names - look.recorder.quiet}"
        time.sleep(_STEP_S)
        look("healed; the last sends are under way")
    tables.wait_until_relayed(
        cluster.business_url, patience_s=patience_s, on_step=lambda left: look(f"healed; {left} transactions are kept")
    )
    left = tables.wait_until_quiet(
        (cluster.notify_url, cluster.other_url),
        cluster.all_groups,
        patience_s=patience_s,
        on_step=lambda left: look(f"healed; {left} things still to be done"),
    )
    receivers = [*cluster.consumers, *cluster.chain.services]
    for receiver in receivers:
        receiver.tell(QUIET)
    for receiver in receivers:
        receiver.wait()
    look("reading the databases")
    return left


def _keep(record: Record, violations: Sequence[Violation], directory: Path) -> None:
    """Save the state of the databases, which are deleted."""
    with (directory / "violations.txt").open("w") as file:
        file.writelines(f"{each.invariant} {each.text}\n" for each in violations)
    with (directory / "log.jsonl").open("w") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in record.rows)


def _line(recorder: Recorder, done: Sequence[Done], left_s: float) -> str:
    counts = Counter(each.fault.kind for each in done)
    cuts = counts[Kind.CUT_DATABASE] + counts[Kind.CUT_CLIENTS]
    return (
        f"{left_s:4.0f} s left: {len(recorder.record.sendings):,} sends, {len(recorder.delivered):,} deliveries, "
        f"{counts[Kind.KILL]} kills, {counts[Kind.PAUSE]} pauses, {cuts} cuts, {counts[Kind.POSTGRES]} restarts"
    )


def _counts(recorder: Recorder, done: Sequence[Done], *, left: int) -> Counter[str]:
    record = recorder.record
    sendings = list(record.sendings.values())
    counts = Counter(
        messages=len(record.rows),
        sends=sum(each.way is SendMethod.PLAIN for each in sendings),
        transactions=sum(each.way is not SendMethod.PLAIN for each in sendings),
        committed=len(record.committed),
        failed=sum(bool(each.failed) and each.failed != "refused" for each in sendings),
        deliveries=len(recorder.delivered),
        redeliveries=recorder.redelivered,
        dead=len(record.dead),
        conflicts=sum(told.reply == "outcome_conflict" for each in sendings for told in each.told),
        left=left,
        lost=sum(len(loss.gone) for loss in record.losses),
        lost_places=sum(len(loss.places) for loss in record.losses),
    )
    for each in done:
        counts[each.fault.kind.name.lower()] += 1
        counts["clock_step"] += each.fault.clock_step_s != 0
        if each.moment is not Moment.ANY:
            counts[f"pause_in_{each.moment.name.lower()}"] += 1
    return counts


def _counts_of_guests(recorder: Recorder, language: str = "") -> Counter[str]:
    """Return the work of RocketMQ clients, and messages exchanged with txmsg's. language: of Java's alone."""
    producer, consumer = (f"{role}{language and f'-{language}'}" for role in (GUEST_PRODUCER, GUEST_CONSUMER))
    of_guests = [each for each in recorder.record.sendings.values() if each.serial.startswith(producer)]
    in_log = {row.serial for row in recorder.record.rows}
    counts = Counter(
        guest_sends=sum(each.stored_at is not None for each in of_guests),
        guest_halves=sum(each.half_at is not None for each in of_guests),
        guest_checks=sum(count for name, count in recorder.checked.items() if name.startswith(producer)),
        guest_checked=sum(
            each.way is SendMethod.CLASSIC and not each.told and each.serial in in_log for each in of_guests
        ),
        from_guests=0,
        to_guests=0,
    )
    for each in recorder.record.handlings:
        is_from, is_to = each.body.startswith(producer), each.process.startswith(consumer)
        counts["guest_pushed"] += each.done and is_to and each.group == PUSHED
        counts["guest_pulled"] += each.done and is_to and each.group == PULLED
        counts["from_guests"] += each.done and is_from and not each.process.startswith(GUEST_CONSUMER)
        counts["to_guests"] += each.done and is_to and not each.body.startswith(GUEST_PRODUCER)
    return counts


def _counts_of_java(guests: Guests, recorder: Recorder, done: Sequence[Done]) -> Counter[str]:
    """Return the same for Java clients alone, with their faults. Each name begins with `java_`."""
    counts = _counts_of_guests(recorder, JAVA)
    for kinds, processes in ((OF_GUEST_PRODUCERS, guests.producers), (OF_GUEST_CONSUMERS, guests.consumers)):
        of_java = {number for number, each in enumerate(processes) if f"-{JAVA}-" in each.name}
        for kind in kinds:
            counts[kind.name.lower()] = sum(each.fault.kind is kind and each.fault.target in of_java for each in done)
    return Counter({f"java_{name}": count for name, count in counts.items()})


def _kept_counts(record: Record, aways: Sequence[tuple[float, float]]) -> Counter[str]:
    kept = [each for each in record.sendings.values() if each.way is SendMethod.KEPT]
    away = [each for each in kept if any(begun <= each.begun and (each.ended or inf) <= end for begun, end in aways)]
    waits_s = sorted(each.ended - each.begun for each in away if each.ended is not None)
    counts = Counter(kept=len(kept), kept_while_away=sum(each.returned_at is not None for each in away))
    if waits_s:
        counts["kept_ms_p50"] = round(1000 * waits_s[len(waits_s) // 2])
        counts["kept_ms_p99"] = round(1000 * waits_s[len(waits_s) * 99 // 100])
        counts["kept_ms_max"] = round(1000 * waits_s[-1])
    return counts


def _waits(recorder: Recorder, done: Sequence[Done], end: float) -> dict[str, tuple[float, float]]:
    worst: dict[str, tuple[float, float]] = {}
    for each in done:
        until = min(each.ended + _AFTER_FAULT_S, end)
        sends = _longest_gap(recorder.acknowledged, each.began, until)
        deliveries = _longest_gap(recorder.delivered, each.began, until)
        before = worst.get(each.fault.kind.value, (0.0, 0.0))
        worst[each.fault.kind.value] = max(before[0], sends), max(before[1], deliveries)
    return worst


def _longest_gap(moments: Sequence[float], since: float, until: float) -> float:
    within = sorted(at for at in moments if since <= at <= until)
    return max((b - a for a, b in zip([since, *within], [*within, until], strict=True)), default=0.0)
