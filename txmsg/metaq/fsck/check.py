"""Checks a log: reads all of it, also while it is written, and reports damage, losses, and how to repair them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from txmsg.errors import CorruptLog
from txmsg.metaq.format.frame import HEADER_SIZE_BYTES_MAX, HOLES, MAGIC, BadFrame, read_header
from txmsg.metaq.fsck.attribution import attribute
from txmsg.metaq.fsck.queue_check import QueueCheck
from txmsg.metaq.fsck.report import LogCheckReport, Lost, Problem
from txmsg.metaq.fsck.scan import Progress, Region, Scan
from txmsg.metaq.store.cells import queues_of
from txmsg.metaq.store.commit_log import CommitLogReader, files_of, is_named, log_file
from txmsg.metaq.store.keys import BadKeys, KeysFile, keys_file
from txmsg.metaq.store.state import Checkpoint, LogIdentity, QueueKey, checkpoint_of, identity_of, read_checked
from txmsg.metaq.store.topics import Flush, TopicSettings, read_topics

_LOOKS_MAX = 5
_HOLES = tuple(kind.value for kind in HOLES)
_OWN_NAMES = {
    "ahead",
    "lock",
    "log.json",
    "checkpoint",
    "topics.json",
    "commitlog",
    "queues",
    "keys",
    "groups",
    "damaged",
}
_SUFFIXES = {"commitlog": ".log", "keys": ".keys"}


@dataclass(slots=True)
class Findings:
    """The findings of a check, for a repair to start from."""

    report: LogCheckReport
    identity: LogIdentity | None
    known: Checkpoint | None = None
    scan: Scan | None = None
    queues: dict[QueueKey, QueueCheck] = field(default_factory=dict)
    damage: list[tuple[Region, list[Lost]]] = field(default_factory=list)
    """The positions to be taken out, each with the offsets that it must have held."""


def size_bytes_of(root: Path) -> int:
    """Return the number of bytes to read."""
    return sum(path.stat().st_size for path in (root / "commitlog").glob("*.log"))


def check(root: Path, progress: Progress = lambda _: None) -> Findings:
    """Read a whole log. Raises CorruptLog for a directory without one.

    `progress`: called with the number of bytes read.

    Writes of a running writer are not damage: apparent damage is checked again.
    """
    if not (root / "commitlog").is_dir():
        raise CorruptLog(f"{root} is not a log: it has no directory commitlog")
    report = LogCheckReport(str(root))
    identity = _identity(root, report)
    findings = Findings(report, identity)
    _check_names(root, report)
    if identity is None:
        return findings
    settings = _settings(root, report)
    findings.scan = Scan(root, identity)
    of_names, report.problems = report.problems, []
    log = CommitLogReader(root / "commitlog")
    seen: set[tuple[str, str | int]] | None = None
    for _ in range(_LOOKS_MAX):
        before = checkpoint_of(root, identity.log_id)
        report.problems = []
        findings.known = _checkpoint(root, identity, report)
        findings.scan.run(progress)
        _check_frames(root, findings, settings)
        # What a writer does between two readings looks like damage in one look; damage does in all of them.
        report.problems = [problem for problem in report.problems if seen is None or _place_of(problem) in seen]
        seen = set(map(_place_of, report.problems))
        is_quiet = log.end_position() == findings.scan.seen and checkpoint_of(root, identity.log_id) == before
        if not seen or is_quiet:
            break
    report.problems = of_names + report.problems
    _check_keys(root, findings)
    return findings


def _place_of(problem: Problem) -> tuple[str, str | int]:
    """Return the parts of a problem that are the same each time it is found, regardless of the writer's progress."""
    return problem.file, problem.text if problem.position is None else problem.position


# ---- small files and names


def _identity(root: Path, report: LogCheckReport) -> LogIdentity | None:
    try:
        return identity_of(root, create=False)
    except CorruptLog as exc:
        found = guessed_identity(root)
        frames = "frames tell which log it is" if found else "nothing tells which log it is"
        report.problems.append(Problem(file="log.json", text=f"{str(exc).partition(': `')[0]}; {frames}"))
        return found


def guessed_identity(root: Path) -> LogIdentity | None:
    """Return the log's identity by its frames: the id that most files begin with, and the latest generation."""
    log, found = CommitLogReader(root / "commitlog"), dict[int, list[int]]()
    for first in log.files():
        end = first + log_file(log.directory, first).stat().st_size
        start, seen = first, 0
        while (start := log.find_bytes(MAGIC, start, end)) < end and seen < 1000:
            try:
                header = read_header(log.read(start, min(end - start, HEADER_SIZE_BYTES_MAX)))
            except BadFrame:
                start += 1
                continue
            if header.position == start:
                found.setdefault(header.log_id, []).append(header.generation)
                seen += 1
            start += max(8, header.size_bytes)
    if not found:
        return None
    log_id = max(found, key=lambda log_id: len(found[log_id]))
    return LogIdentity(log_id, max(found[log_id]))


def _settings(root: Path, report: LogCheckReport) -> dict[str, TopicSettings]:
    try:
        return read_topics(root)
    except CorruptLog as exc:
        way_out = "set them again with `Log.set_topic` after `txmsg metaq check --repair`, which puts the file aside"
        report.problems.append(Problem(file="topics.json", text=str(exc).partition(": delete")[0], way_out=way_out))
        return {}


def _checkpoint(root: Path, identity: LogIdentity, report: LogCheckReport) -> Checkpoint | None:
    known = checkpoint_of(root, identity.log_id)
    if known is None and (root / "checkpoint").exists():
        try:
            text = f"it is of another log, {read_checked(root / 'checkpoint').get('log_id')}"
        except (OSError, ValueError) as exc:
            text = f"it cannot be read: {exc}"
        way_out = "opening the log for writing recreates it from all frames"
        report.problems.append(Problem(file="checkpoint", text=text, way_out=way_out))
    return known


def _check_names(root: Path, report: LogCheckReport) -> None:
    for name in strange_names(root):
        way_out = "give it its name back, or take it away, or `txmsg metaq check --repair` does"
        report.problems.append(Problem(file=name, text="it is named as none of the log's files", way_out=way_out))


def strange_names(root: Path) -> list[str]:
    """Return files that have no name of the log's: it ignores them, so they may be missing elsewhere."""
    strange = [name for name in _listed(root) if name not in _OWN_NAMES]
    for name, suffix in _SUFFIXES.items():
        strange += [f"{name}/{file}" for file in _listed(root / name) if not is_named(file, suffix)]
    queues = set(queues_of(root))
    for topic in _listed(root / "queues"):
        for number in _listed(root / "queues" / topic):
            place = f"queues/{topic}/{number}"
            if len(number) != 4 or not number.isdecimal() or (topic, int(number)) not in queues:
                strange.append(place)
            else:
                strange += [f"{place}/{name}" for name in _listed(root / place) if not is_named(name, ".cells")]
    return strange


def _listed(directory: Path) -> list[str]:
    """Return the names in a directory, without the temporary file of a replacement that was interrupted."""
    return sorted(name for name in os.listdir(directory) if not name.endswith(".new")) if directory.is_dir() else []


def _check_keys(root: Path, findings: Findings) -> None:
    """Check the indexes of keys: a damaged one is not used, a missing one is created."""
    assert findings.identity is not None
    for first in files_of(root / "keys", ".keys"):
        firsts = CommitLogReader(root / "commitlog").files()
        try:
            if first not in firsts[:-1]:
                raise BadKeys("it belongs to no finished file")
            KeysFile(root, findings.identity.log_id, first, firsts[firsts.index(first) + 1]).check()
        except BadKeys as exc:
            known = checkpoint_of(root, findings.identity.log_id)
            if known is not None and first < known.begin:
                continue  # retention deletes it with its file, or the writer after it
            way_out = "delete it: the writer recreates it; until then keys are found more slowly"
            file = str(keys_file(root, first).relative_to(root))
            findings.report.problems.append(Problem(file=file, text=str(exc), way_out=way_out))


# ---- frames and queues


def _check_frames(root: Path, findings: Findings, settings: dict[str, TopicSettings]) -> None:
    report, scan, known = findings.report, findings.scan, findings.known
    assert scan is not None
    log_end = CommitLogReader(root / "commitlog").end_position()
    keys = {*queues_of(root), *scan.queues, *(known.ends if known else ())}
    default = TopicSettings()
    findings.queues = {}
    for key in sorted(keys):
        is_synchronous = settings.get(key[0], default).flush is Flush.SYNC
        queue_check = QueueCheck(root, key, scan, known, is_synchronous, scan.seen if log_end > scan.seen else 2**64)
        queue_check.run()
        report.problems += queue_check.problems
        findings.queues[key] = queue_check
    findings.damage = [(region, []) for region in damaged_regions(scan, known, findings.queues)]
    attribute(findings.damage, findings.queues, scan)
    for region, lost in findings.damage:
        at = f"positions {region.begin} to {region.end - 1}: " if region.end > region.begin else ""
        report.problems.append(Problem(file="commitlog", position=region.begin, text=at + region.why, lost=tuple(lost)))
    for position, size in scan.untidy:
        text = f"the {size} bytes behind a frame are not all zero; no message is in them"
        report.problems.append(Problem(file="commitlog", position=position, text=text))
    _summarise(findings)


def damaged_regions(scan: Scan, known: Checkpoint | None, queues: dict[QueueKey, QueueCheck]) -> list[Region]:
    """Return the places that must have held frames.

    A torn end does not count, unless something says that it had been on disk.
    """
    regions = sorted(scan.regions, key=lambda region: region.begin)
    if known and known.begin < scan.begin:
        regions.insert(0, Region(known.begin, scan.begin, "no file holds this", is_file=False))
    named = [
        position + size for queue in queues.values() for _, position, size, *_ in queue.named if position >= scan.end
    ]
    on_disk = max([*named, scan.synced, known.position if known else 0])
    if on_disk > scan.end:
        torn = scan.torn
        why = torn.why if torn else "the log ends here"
        why = f"{why}; it was on disk up to position {on_disk}"
        header = torn.header if torn else None
        regions.append(Region(scan.end, max(scan.seen, scan.end), why, header, on_disk=on_disk))
    return regions


def _summarise(findings: Findings) -> None:
    report, scan = findings.report, findings.scan
    assert scan is not None
    report.begin, report.end = scan.begin, scan.end
    report.frames, report.messages, report.queues = scan.frames, scan.messages, len(findings.queues)
    report.read_bytes = max(0, scan.seen - scan.begin)
    report.notes.clear()
    report.holes.clear()
    if scan.torn and not any(region.begin == scan.torn.begin for region, _ in findings.damage):
        text = f"{scan.torn.end - scan.torn.begin} bytes at the end are not a whole frame"
        way_out = "the writer cuts them off when it opens the log: nothing that was promised is in them"
        if scan.torn.is_begun:
            report.notes.append(f"{text}: one that is being written, or that a crash has torn; {way_out}")
        else:
            report.problems.append(
                Problem(file="commitlog", position=scan.torn.begin, text=f"{text}: {scan.torn.why}", way_out=way_out)
            )
    if scan.pads_bytes:
        report.notes.append(f"{scan.pads_bytes} bytes mean nothing since a repair")
    if findings.known is None:
        report.notes.append("there is no checkpoint: the writer reads everything when it opens the log")
    for (topic, queue), checked in findings.queues.items():
        holes = checked.live[np.isin(checked.live["kind"], _HOLES)]
        report.holes += [Lost(topic, queue, int(h["base_offset"]), int(h["end_offset"])) for h in holes]
