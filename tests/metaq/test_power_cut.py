"""A power cut at any moment: acknowledged messages of synchronous topics survive, and only written data is read."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.metaq.logs import batch, bodies, read_all, read_around
from tests.metaq.power import ForgetfulDisk
from txmsg.metaq.store.log import Log, LogConfig
from txmsg.metaq.store.queues import Queues
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.recovery import recover
from txmsg.metaq.store.topics import Flush, TopicSettings

CONFIG = LogConfig(file_size_bytes_max=1500, retention_size_bytes=6000, flush_s=3600)
QUEUES = [("safe", 0), ("safe", 1), ("timed", 0)]


class History:
    """The operations on a log, and the messages that must therefore exist."""

    def __init__(self, log: Log, choice: random.Random) -> None:
        self.log = log
        self.ends = dict.fromkeys(QUEUES, 0)
        self.generation = 1
        self._choice = choice
        log.set_topic("timed", TopicSettings(flush=Flush.TIMED))

    def step(self) -> str:
        """Do one operation on the log; return its name."""
        what = self._choice.choice(["append"] * 6 + ["many", "truncate", "checkpoint", "fork", "delete"])
        queue = self._choice.choice(QUEUES)
        match what:
            case "append":
                self._append([queue])
            case "many":
                self._append(QUEUES)
            case "truncate" | "fork":
                begin, _ = self.log.reader.queue(*queue).range()
                offset = self._choice.randint(max(begin, self.ends[queue] - 6), self.ends[queue])
                if what == "fork":
                    self.generation = self.log.fork([(*queue, offset)])
                else:
                    self.log.truncate(*queue, offset)
                self.ends[queue] = offset
            case "checkpoint":
                self.log.checkpoint()
            case "delete":
                self.log.delete_old()
        return f"{what} {queue}"

    def _append(self, queues: list[tuple[str, int]]) -> None:
        count = self._choice.randint(1, 4)
        self.log.append([batch(*queue, self.ends[queue], count) for queue in queues])
        for queue in queues:
            self.ends[queue] += count


def is_as_promised(root: Path, history: History, what: str) -> None:
    """Open the log left by a power cut, compare it with the acknowledgements, and continue with it."""
    with Log(root, CONFIG) as log:
        assert log.identity.generation == history.generation, what
        for queue in QUEUES:
            topic, number = queue
            reader = LogReader(root).queue(*queue)
            begin, end = reader.range()
            missing = {offset for first, last in reader.holes() for offset in (first, last - 1)}
            kept_end = min(missing, default=end)
            expected = dict(enumerate(bodies(*queue, begin, kept_end - begin), begin))
            assert read_around(reader) == expected, f"{queue} after {what}"
            if topic == "safe":
                assert (missing, end) == (set(), history.ends[queue]), f"{queue} after {what}"
            else:
                assert end >= history.ends[queue], f"offsets of {queue} are given out again after {what}"
            log.append([batch(topic, number, end, 1)])
            assert read_around(reader) == expected | dict(enumerate(bodies(*queue, end, 1), end))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgetfulDisk]:
    disk = ForgetfulDisk(monkeypatch)
    yield disk
    disk.close()


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_messages_survive_a_power_cut_after_each_step(
    tmp_path: Path, disk: ForgetfulDisk, seed: int
) -> None:
    choice = random.Random(seed)
    with Log(tmp_path / "log", CONFIG) as log:
        history = History(log, choice)
        for _ in range(50):
            what = history.step()
            disk.after_power_cut(tmp_path / "log", tmp_path / "copy", choice)
            is_as_promised(tmp_path / "copy", history, what)
            shutil.rmtree(tmp_path / "copy")


def test_kill_followed_by_a_power_cut_loses_no_acknowledged_message(tmp_path: Path, disk: ForgetfulDisk) -> None:
    config = LogConfig(flush_s=3600, topic=TopicSettings(flush=Flush.TIMED))
    with Log(tmp_path / "log", config) as log:
        log.append([batch("t", 0, 0, 3)])  # in the kernel, not on disk
        shutil.copytree(tmp_path / "log", tmp_path / "killed")
        disk.sync(tmp_path / "killed", tmp_path / "killed" / "log.json", tmp_path / "killed" / "commitlog")
    with Log(tmp_path / "killed", config) as log:
        log.set_topic("safe", TopicSettings())
        log.append([batch("safe", 0, 0, 1)])
        disk.after_power_cut(tmp_path / "killed", tmp_path / "copy", random.Random(1))
    with Log(tmp_path / "copy") as log:
        assert read_all(log.reader.queue("safe", 0)) == bodies("safe", 0, 0, 1)
        assert read_all(log.reader.queue("t", 0)) == bodies("t", 0, 0, 3)


@pytest.mark.usefixtures("disk")  # so that syncs do not wait for a real disk
def test_log_truncated_at_any_byte_is_recovered_up_to_its_last_whole_frame(tmp_path: Path) -> None:
    ends, kept = [0], [(0, 0)]
    with Log(tmp_path / "log") as log:
        for queue, start, count in ((0, 0, 2), (1, 0, 1), (0, 2, 1)):
            log.append([batch("t", queue, start, count)])
            ends.append(log.reader.commit_log.end_position())
            kept.append((log.reader.queue("t", 0).end_offset(), log.reader.queue("t", 1).end_offset()))
        log_id = log.identity.log_id
    path = tmp_path / "log" / "commitlog" / f"{0:020}.log"
    whole = path.read_bytes()
    for size in reversed(range(len(whole) + 1)):
        path.write_bytes(whole[:size])
        (tmp_path / "log" / "checkpoint").unlink(missing_ok=True)
        queues = Queues(tmp_path / "log", 10)
        frames = max(place for place, end in enumerate(ends) if end <= size)
        assert recover(tmp_path / "log", log_id, queues, lambda _: False) == ends[frames], f"cut at {size}"
        queues.files.close()
        reader = LogReader(tmp_path / "log")
        for number, end in enumerate(kept[frames]):
            assert read_all(reader.queue("t", number)) == bodies("t", number, 0, end), f"cut at {size}"
