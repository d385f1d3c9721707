"""One run: the cluster comes up, is loaded and disturbed, heals, and is judged."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import tables
from tests.chaos.client import QUIET
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Faults
from tests.chaos.history import Recorder, Way
from tests.chaos.journal import Journal, Journals
from tests.chaos.judge import Violation, judge
from tests.chaos.plan import Done, Kind, Moment, faults, missing
from tests.chaos.plant import Plant

PATIENCE_S, PATIENCE_WITH_PLANT_S = 45.0, 6.0
"""How long nothing may get nearer to its end, after all has healed."""
_STEP_S = 0.5
_AFTER_FAULT_S = 10.0
"""A pause in sending or delivery that ends so long after a fault is counted as its."""


@dataclass(slots=True)
class Result:
    """What came out."""

    seed: int
    duration_s: float
    counts: Counter[str] = field(default_factory=Counter)
    waits_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By kind of fault: at worst so long without an acknowledged send, and without a delivery."""
    violations: Sequence[Violation] = ()
    missing: Sequence[str] = ()
    """Faults of which there were too few."""
    kept: str = ""
    """Where journals and logs are, if something is wrong."""

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
    on_progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Runs it all in a directory of its own, which stays only if something is wrong and no defect was planted."""
    result = Result(seed, duration_s)
    directory = Path(tempfile.mkdtemp(prefix="txmsg-chaos-"))
    is_over = False
    try:
        cluster = Cluster(directory, seed=seed, rate_per_s=rate_per_s, business_url=business_url, plant=plant)
        on_progress("starting all processes")
        with cluster:
            _play(cluster, result, PATIENCE_WITH_PLANT_S if plant else PATIENCE_S, on_progress)
        is_over = result.clean or plant is not None
    except Exception as exc:
        exc.add_note(f"seed {seed}, {duration_s:.0f} s; journals and logs: {directory}")
        raise
    finally:
        if is_over:
            shutil.rmtree(directory)
        else:
            for data in ("notify", "business"):
                shutil.rmtree(directory / data, ignore_errors=True)
            result.kept = str(directory)
    return result


def _play(cluster: Cluster, result: Result, patience_s: float, on_progress: Callable[[str], None]) -> None:
    journal, journals, recorder = Journal(cluster.journals / "faults.jsonl"), Journals(cluster.journals), Recorder()

    def look(what: str) -> None:
        for process, entry in journals.new():
            recorder.add(process, entry)
        on_progress(what)

    with Faults(cluster, faults(result.seed, result.duration_s), journal) as disturbed:
        end = disturbed.began + result.duration_s
        while time.monotonic() < end:
            disturbed.check()
            left_s = end - time.monotonic()
            look(_line(recorder, disturbed.done, left_s))
            time.sleep(max(0.0, min(_STEP_S, left_s)))
    for process in cluster.processes():
        process.check()
    for producer in cluster.producers:
        producer.tell(QUIET)
    _wait_for(lambda: _are_quiet(cluster, "producer"), "producers do not come to an end")
    left = tables.wait_until_quiet(
        cluster.notify_url, patience_s=patience_s, on_step=lambda left: look(f"healed; {left} things still to be done")
    )
    for consumer in cluster.consumers:
        consumer.tell(QUIET)
    for consumer in cluster.consumers:
        consumer.wait()
    look("reading the databases")
    record = recorder.record
    epochs = tables.read_notify(cluster.notify_url, record)
    tables.read_business(cluster.business_url, record)
    journal.close()
    on_progress("judging")
    result.violations = judge(record)
    result.missing = missing(disturbed.done, disturbed.began, result.duration_s)
    result.counts = _counts(recorder, disturbed.done, takeovers=epochs - 1, left=left)
    result.waits_s = _waits(recorder, disturbed.done, end)


def _are_quiet(cluster: Cluster, role: str) -> bool:
    """Whether each process of this role has said that it begins nothing new."""
    paths = [cluster.journals / f"{each.name}.{each.lives - 1}.jsonl" for each in cluster.producers]
    return all(b'"quiet"' in path.read_bytes()[-200:] for path in paths if path.name.startswith(role))


def _wait_for(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)


def _line(recorder: Recorder, done: Sequence[Done], left_s: float) -> str:
    counts = Counter(each.fault.kind for each in done)
    cuts = counts[Kind.CUT_DATABASE] + counts[Kind.CUT_CLIENTS]
    return (
        f"{left_s:4.0f} s left: {len(recorder.record.sendings):,} sends, {len(recorder.delivered):,} deliveries, "
        f"{counts[Kind.KILL]} kills, {counts[Kind.PAUSE]} pauses, {cuts} cuts, {counts[Kind.POSTGRES]} restarts"
    )


def _counts(recorder: Recorder, done: Sequence[Done], *, takeovers: int, left: int) -> Counter[str]:
    record = recorder.record
    sendings = list(record.sendings.values())
    counts = Counter(
        messages=len(record.rows),
        sends=sum(each.way is Way.PLAIN for each in sendings),
        transactions=sum(each.way is not Way.PLAIN for each in sendings),
        committed=len(record.committed),
        failed=sum(bool(each.failed) and each.failed != "refused" for each in sendings),
        deliveries=len(recorder.delivered),
        redeliveries=recorder.redelivered,
        dead=len(record.dead),
        conflicts=sum(told.reply == "outcome_conflict" for each in sendings for told in each.told),
        takeovers=takeovers,
        left=left,
    )
    for each in done:
        counts[each.fault.kind.name.lower()] += 1
        if each.moment is not Moment.ANY:
            counts[f"pause_in_{each.moment.name.lower()}"] += 1
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
