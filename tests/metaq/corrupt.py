"""Damages logs in every way there is, by a seed, and checks that damage is found and never served.

python -m tests.metaq.corrupt --count 1000 [--seed N] prints a table of kinds and results.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from txmsg.errors import CorruptLog, OffsetOutOfRange, OffsetsMissing, StorageError
from txmsg.metaq.format.frame import Compression, FrameColumns, Header, encode
from txmsg.metaq.fsck.check import check
from txmsg.metaq.fsck.repair import repair
from txmsg.metaq.store.cells import Cells, queue_directory
from txmsg.metaq.store.commit_log import files_of
from txmsg.metaq.store.frames import frames
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.state import LogIdentity, write_identity
from txmsg.metaq.store.topics import Flush, TopicSettings

QUEUES = (("trade", 0), ("trade", 1), ("user", 0))
_CONFIG = LogConfig(file_size_bytes_max=2500, flush_s=3600, checkpoint_s=3600)
_ROUNDS = 10
_LOG_ID = 7
Messages = dict[tuple[str, int, int], bytes]


@dataclass(frozen=True)
class PreparedLogs:
    """A log, the same log with another history of the same shape, another log of the same shape, and their contents."""

    root: Path
    stale: Path
    other: Path
    expected: Messages
    frames: list[Header]
    void: frozenset[int]

    def file_of(self, root: Path, position: int) -> tuple[Path, int]:
        first = max(each for each in files_of(root / "commitlog", ".log") if each <= position)
        return root / "commitlog" / f"{first:020}.log", position - first


def prepare(directory: Path) -> PreparedLogs:
    """Create the logs."""
    expected = _write(directory / "log", _LOG_ID, "a")
    _write(directory / "stale", _LOG_ID, "b")
    _write(directory / "other", _LOG_ID + 1, "a")
    root = directory / "log"
    log = LogReader(root).commit_log
    whole = list(frames(log, _LOG_ID, 0, log.end_position()))
    named = {int(position) for key in QUEUES for position in Cells(queue_directory(root, *key)).load(0)["position"]}
    void = frozenset(each.position for each in whole if each.position not in named)
    return PreparedLogs(root, directory / "stale", directory / "other", expected, whole, void)


def _write(root: Path, log_id: int, letter: str) -> Messages:
    (root / "commitlog").mkdir(parents=True)
    write_identity(root, LogIdentity(log_id))
    expected: Messages = {}
    with Log(root, _CONFIG) as log:
        log.set_topic("user", TopicSettings(flush=Flush.TIMED))
        ends = dict.fromkeys(QUEUES, 0)
        for number in range(_ROUNDS):
            for key in QUEUES:
                count = 1 + (number + key[1]) % 3
                bodies = [f"{letter}{key[0]}/{key[1]}/{ends[key] + each}".encode() * 4 for each in range(count)]
                columns = FrameColumns(bodies, [1000 + number], key=[f"k{number}"] * count)
                compression = Compression.ZSTD if number % 4 == 3 else Compression.NONE
                log.append([Append(*key, encode(columns, compression), ends[key])])
                for body in bodies:
                    expected[(*key, ends[key])] = body
                    ends[key] += 1
            if number == 5:
                log.checkpoint()
                log.truncate("trade", 1, ends["trade", 1] - 1)
                ends["trade", 1] -= 1
                del expected["trade", 1, ends["trade", 1]]
        log.index_keys()
    return expected


# ---- ways to damage a log: each changes the copy and says what it did, or None if it has changed nothing

Damage = Callable[[PreparedLogs, Path, random.Random], str | None]


def _flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def bit_in_header(material: PreparedLogs, root: Path, rng: random.Random) -> str:
    frame = rng.choice(material.frames)
    path, at = material.file_of(root, frame.position)
    _flip(path, bit := 8 * at + rng.randrange(8 * frame.start))
    return f"bit {bit} of {path.name}"


def bit_in_body(material: PreparedLogs, root: Path, rng: random.Random) -> str:
    frame = rng.choice(material.frames)
    path, at = material.file_of(root, frame.position)
    _flip(
        path,
        bit := 8 * at + rng.randrange(8 * frame.start, 8 * frame.size_bytes)
        if frame.size_bytes > frame.start
        else 8 * at,
    )
    return f"bit {bit} of {path.name}"


def bit_in_padding(material: PreparedLogs, root: Path, rng: random.Random) -> str | None:
    frame = rng.choice(material.frames)
    used = frame.start + frame.payload_size_bytes
    if used == frame.size_bytes:
        return None
    path, at = material.file_of(root, frame.position)
    _flip(path, bit := 8 * at + rng.randrange(8 * used, 8 * frame.size_bytes))
    return f"bit {bit} of {path.name}"


def _any_file(root: Path, rng: random.Random, *patterns: str) -> Path:
    return rng.choice(sorted(each for pattern in patterns for each in root.glob(pattern) if each.stat().st_size))


def bit_in_cell(material: PreparedLogs, root: Path, rng: random.Random) -> str:
    path = _any_file(root, rng, "queues/*/*/*.cells")
    _flip(path, bit := rng.randrange(8 * path.stat().st_size))
    return f"bit {bit} of {path}"


def bit_in_a_small_file(material: PreparedLogs, root: Path, rng: random.Random) -> str:
    path = _any_file(root, rng, "*.json", "checkpoint", "keys/*.keys")
    _flip(path, bit := rng.randrange(8 * path.stat().st_size))
    return f"bit {bit} of {path}"


def bit_in_name(material: PreparedLogs, root: Path, rng: random.Random) -> str | None:
    path = rng.choice(sorted(each for each in root.rglob("*") if each.name != "lock"))
    name = bytearray(path.name.encode())
    name[rng.randrange(len(name))] ^= 1 << rng.randrange(7)
    if b"/" in name or b"\0" in name or path.with_name(name.decode()).exists():
        return None
    path.rename(path.with_name(name.decode()))
    return f"{path} is {name.decode()}"


def _spans(material: PreparedLogs, root: Path, frame: Header) -> bytes:
    path, at = material.file_of(root, frame.position)
    return path.read_bytes()[at : at + frame.size_bytes]


def _put(material: PreparedLogs, root: Path, frame: Header, data: bytes) -> None:
    path, at = material.file_of(root, frame.position)
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + data + whole[at + frame.size_bytes :])


def frames_swapped(material: PreparedLogs, root: Path, rng: random.Random) -> str | None:
    one, two = rng.sample(material.frames, 2)
    if one.size_bytes != two.size_bytes:
        return None
    first, second = _spans(material, root, one), _spans(material, root, two)
    _put(material, root, one, second)
    _put(material, root, two, first)
    return f"{one.position} and {two.position}"


def frame_repeated(material: PreparedLogs, root: Path, rng: random.Random) -> str | None:
    one, two = rng.sample(material.frames, 2)
    if rng.random() < 0.5:
        path, _ = material.file_of(root, material.frames[-1].position)
        path.write_bytes(path.read_bytes() + _spans(material, root, one))
        return f"{one.position} at the end"
    if one.size_bytes != two.size_bytes:
        return None
    _put(material, root, two, _spans(material, root, one))
    return f"{one.position} at {two.position}"


def frame_stale(material: PreparedLogs, root: Path, rng: random.Random) -> str | None:
    frame = rng.choice(material.frames)
    if frame.position in material.void or _spans(material, material.stale, frame) == _spans(material, root, frame):
        return None  # bytes voided by a truncation are meaningless
    _put(material, root, frame, _spans(material, material.stale, frame))
    return f"{frame.position}"


def frame_of_another_log(material: PreparedLogs, root: Path, rng: random.Random) -> str:
    frame = rng.choice(material.frames)
    if rng.random() < 0.3:
        path, _ = material.file_of(root, frame.position)
        shutil.copyfile(material.other / "commitlog" / path.name, path)
        return f"all of {path.name}"
    _put(material, root, frame, _spans(material, material.other, frame))
    return f"{frame.position}"


def frame_cut(material: PreparedLogs, root: Path, rng: random.Random) -> str:
    frame = rng.choice(material.frames)
    path, at = material.file_of(root, frame.position)
    whole, size = path.read_bytes(), rng.randrange(frame.size_bytes)
    if rng.random() < 0.5:
        path.write_bytes(whole[: at + size] + bytes(frame.size_bytes - size) + whole[at + frame.size_bytes :])
        if path.read_bytes() == whole:
            _flip(path, 8 * at)
        return f"zeros from {frame.position + size}"
    path.write_bytes(whole[: at + size] + whole[at + frame.size_bytes :])
    return f"{frame.position} to {size} bytes"


def cells_moved(material: PreparedLogs, root: Path, rng: random.Random) -> str | None:
    path = _any_file(root, rng, "queues/*/*/*.cells")
    data = path.read_bytes()
    cells = [data[at : at + 40] for at in range(0, len(data), 40)]
    one, two = rng.sample(range(len(cells)), 2)
    match rng.choice(("swapped", "repeated", "left out", "of the stale log", "of another queue")):
        case "swapped":
            cells[one], cells[two] = cells[two], cells[one]
        case "repeated":
            cells[one] = cells[two]
        case "left out":
            del cells[one]
        case "of the stale log":
            stale = (material.stale / path.relative_to(root)).read_bytes()
            cells[one] = stale[40 * one : 40 * one + 40]
        case _:
            cells[one] = (root / "queues/user/0000" / f"{0:020}.cells").read_bytes()[40 * one : 40 * one + 40]
    path.write_bytes(b"".join(cells))
    return str(path) if path.read_bytes() != data else None


def file_missing(material: PreparedLogs, root: Path, rng: random.Random) -> str:
    path = _any_file(root, rng, "commitlog/*.log", "queues/*/*/*.cells", "log.json")
    path.unlink()
    return str(path)


def file_of_wrong_length(material: PreparedLogs, root: Path, rng: random.Random) -> str:
    path = _any_file(root, rng, "commitlog/*.log", "queues/*/*/*.cells", "*.json", "checkpoint", "keys/*.keys")
    data = path.read_bytes()
    if rng.random() < 0.5:
        path.write_bytes(data[: rng.randrange(len(data))])
    else:
        path.write_bytes(data + rng.choice((bytes(rng.randrange(1, 300)), rng.randbytes(rng.randrange(1, 300)))))
    return f"{path}: {len(data)}, now {path.stat().st_size}"


KINDS: tuple[Damage, ...] = (
    bit_in_header, bit_in_body, bit_in_padding, bit_in_cell, bit_in_a_small_file, bit_in_name,
    frames_swapped, frame_repeated, frame_stale, frame_of_another_log, frame_cut, cells_moved,
    file_missing, file_of_wrong_length,
)  # fmt: skip


# ---- results


@dataclass(frozen=True)
class Result:
    """The result for one damaged log."""

    kind: str
    what: str
    found: bool
    wrong: str
    """Wrongly served messages, or ones lost without an error; empty if there are none."""
    opened: bool
    repaired: str = ""
    """Errors after a repair; empty if there are none."""
    silent: str = ""
    """Messages missing from a read of the whole queue without an error; empty if there are none."""
    given_up: int = 0
    """Number of messages that the repair could not save."""


def damaged_logs(material: PreparedLogs, directory: Path, seed: int, count: int) -> Iterator[tuple[str, str, Path]]:
    """Yield copies of the log, each damaged in one way, by turns."""
    rng = random.Random(seed)
    root = directory / "copy"
    for number in range(count):
        damage = KINDS[number % len(KINDS)]
        what = None
        while what is None:
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(material.root, root)
            what = damage(material, root, rng)
        yield damage.__name__, what, root


def judge(material: PreparedLogs, kind: str, what: str, root: Path) -> Result:
    """Check a damaged log, read all of it, open it for writing, and read it again."""
    found = bool(check(root).report.problems) if (root / "commitlog").is_dir() else True
    wrong = _wrongly_served(material, root)
    silent = _silently_short(material, root)
    opened = True
    try:
        with Log(root, _CONFIG) as log:
            wrong = wrong or _wrongly_served(material, root) or _wrongly_going_on(material, log)
    except (CorruptLog, StorageError):
        opened = False
    return Result(kind, what, found, wrong, opened, silent=silent)


def _silently_short(material: PreparedLogs, root: Path) -> str:
    """Read each queue as a consumer does, from begin to end, until an error; return missing messages."""
    try:
        reader = LogReader(root)
        topics = reader.topics()
    except CorruptLog:
        return ""
    for key in QUEUES:
        found = 0
        try:
            queue = reader.queue(*key)
            offset, _ = queue.range()
            while batches := queue.fetch(offset, size_bytes_max=300):
                found += sum(map(len, batches))
                offset = batches[-1].end_offset
        except (CorruptLog, OffsetsMissing, OffsetOutOfRange):
            continue
        expected = sum((topic, number) == key for topic, number, _ in material.expected)
        if found != expected and (key[0] in topics or not found):
            return f"{key} ends after {found} of {expected} messages"
    return ""


def mended(material: PreparedLogs, kind: str, what: str, root: Path) -> Result:
    """Repair a damaged log: it must then be intact, serve all but the reported losses, and accept appends."""
    try:
        done = repair(root)
    except CorruptLog as exc:
        return Result(kind, what, found=True, wrong="", opened=False, repaired=f"not repaired: {exc}")
    report = check(root).report
    if report.problems:
        return Result(kind, what, True, "", False, f"after {done} there is {'; '.join(map(str, report.problems))}")
    there = {(topic, queue, offset): body for topic, queue, offset, body in served(root)}
    missing = {key for key in material.expected if key not in there}
    said = {(e.topic, e.queue, offset) for e in report.holes for offset in range(e.begin, e.end)}
    begins = {key: LogReader(root).queue(*key).range()[0] for key in QUEUES}
    silent = {key for key in missing - said if key[2] >= begins[key[0], key[1]]}
    wrong = _wrongly_served(material, root)
    if silent:
        wrong = f"silently gone: {sorted(silent)}; {done}"
    with Log(root, _CONFIG) as log:
        wrong = wrong or _wrongly_going_on(material, log)
    return Result(kind, what, True, "", True, wrong, given_up=len(missing))


def _wrongly_served(material: PreparedLogs, root: Path) -> str:
    for number, (topic, queue, offset, body) in enumerate(served(root)):
        if material.expected.get((topic, queue, offset)) != body:
            return f"message {number}: topic {topic} queue {queue} offset {offset} is {body!r}"
    return ""


def served(root: Path) -> Iterator[tuple[str, int, int, bytes]]:
    """Return all messages that a reader returns, asked for every offset."""
    try:
        reader = LogReader(root)
    except CorruptLog:
        return
    for topic, queue in QUEUES:
        offset = 0
        while offset < 40:
            try:
                batches = reader.queue(topic, queue).fetch(offset, size_bytes_max=1)
            except OffsetsMissing as exc:
                offset = max(offset + 1, exc.end)
                continue
            except (CorruptLog, OffsetOutOfRange):
                offset += 1
                continue
            for batch in batches:
                for message in batch.messages():
                    assert message.offset is not None
                    yield topic, queue, message.offset, message.body
                offset = batch.end_offset
            if not batches:
                offset += 1


def _wrongly_going_on(material: PreparedLogs, log: Log) -> str:
    for topic, queue in QUEUES:
        end = 1 + max(offset for of, number, offset in material.expected if (of, number) == (topic, queue))
        [first] = log.append([Append(topic, queue, encode(FrameColumns([b"new"], [9999])))])
        if first != end:
            return f"topic {topic} queue {queue} goes on at {first}, not at {end}"
    return ""


def main() -> int:
    """Run the checks. Exit status 1 if damage was missed or served."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="how many logs to damage (1000)")
    parser.add_argument("--repair", action="store_true", help="repair each, and look at what is left")
    parser.add_argument("--seed", type=int, default=1, help="decides what is damaged (1)")
    asked = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        material = prepare(Path(directory))
        look = mended if asked.repair else judge
        results = [look(material, *each) for each in damaged_logs(material, Path(directory), asked.seed, asked.count)]
    print(f"{'kind':<24}{'damaged':>9}{'found':>7}{'wrong':>7}{'opened':>8}{'given up':>10}")
    for kind in (kind.__name__ for kind in KINDS):
        of = [result for result in results if result.kind == kind]
        wrong = sum(bool(each.wrong or each.repaired or each.silent) for each in of)
        counts = (len(of), sum(each.found for each in of), wrong, sum(each.opened for each in of))
        print("{:<24}{:>9}{:>7}{:>7}{:>8}{:>10}".format(kind, *counts, sum(each.given_up for each in of)))
    bad = [
        result
        for result in results
        if not result.found or result.wrong or result.repaired or (result.found and result.silent)
    ]
    for each in bad[:60]:
        print(each)
    print(f"seed {asked.seed}: {len(results)} damaged, {len(bad)} missed or wrong, {time.monotonic() - started:.1f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
