"""Random histories of a source: lines, partial rotations, and kills before and after each durable step.

Whatever happens, each line is there under one id, and first occurrences are in order. In every second history all files
begin alike and are followed through a link.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.agent.test_source import HEADER, Followed
from txmsg.metaq.agent import source as source_module
from txmsg.metaq.agent.positions import write_positions
from txmsg.metaq.agent.stream import FollowedFile
from txmsg.metaq.store.log import Append

_EVENTS = 60


class Killed(BaseException):
    """Raised in place of the process's death: nothing more of it runs."""


class Killing:
    """The calls of a source to the outside, with a kill before or after one of the next ones."""

    def __init__(self, chance: random.Random, append: Callable[[Sequence[Append]], list[int]]) -> None:
        self._chance = chance
        self._append = append
        self._left: int | None = None
        self.kills = 0

    def arm(self) -> None:
        self._left = self._chance.randrange(6)

    def disarm(self) -> None:
        self._left = None

    def _pass(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self.kills += 1
                raise Killed

    def write_positions(self, path: Path, streams: Iterable[FollowedFile]) -> None:
        self._pass()
        write_positions(path, streams)
        self._pass()

    def append(self, appends: Sequence[Append]) -> list[int]:
        self._pass()
        offsets = self._append(appends)
        self._pass()
        return offsets


class History:
    """A program that writes numbered lines, one way of rotation, half done or not, and a source that may be killed."""

    def __init__(self, directory: Path, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        self.followed = Followed(directory, alike=bool(seed % 2), batch_size_bytes=4096, record_size_bytes_max=1024)
        self.killing = Killing(self.chance, self.followed.log.append)
        patch.setattr(source_module, "write_positions", self.killing.write_positions)
        patch.setattr(self.followed.to, "append", self.killing.append)
        self.count = 0
        self._is_copied = False
        self._time_ns = 1_000_000_000_000

    def play(self) -> None:
        self._write()
        self._step()  # a source that has never run knows of no rotated files
        rotate = self.chance.choice([self._rename, self._copy])
        events = [(self._write, 4), (self._step, 6), (rotate, 2), (self._killed_step, 3)]
        for _ in range(_EVENTS):
            [event] = self.chance.choices([event for event, _ in events], [weight for _, weight in events])
            if self._is_copied and self.chance.random() < 0.5:
                self._truncate()
            else:
                event()
        if self._is_copied:
            self._truncate()
        self._write()
        self.followed.step()
        self.followed.step()

    def _touched(self, path: Path) -> None:
        """Set file times apart: rotations of a test are closer together than the file system's clock resolution."""
        self._time_ns += 1_000_000_000
        os.utime(path, ns=(self._time_ns, self._time_ns))

    def _write(self) -> None:
        if self._is_copied:  # lines written now would be lost by logrotate itself
            return
        many = self.chance.choice([1, 1, 3, 40])
        self.followed.write(*(f"{number:09} {'x' * 100}" for number in range(self.count, self.count + many)))
        self.count += many
        self._touched(self.followed.path)

    def _move_up(self) -> None:
        for number in range(_EVENTS, 0, -1):
            if (old := self.followed.logs / f"app.log.{number}").exists():
                old.rename(self.followed.logs / f"app.log.{number + 1}")

    def _rename(self) -> None:
        if not self._is_copied:
            self._move_up()
            self.followed.path.rename(self.followed.logs / "app.log.1")
            self._write()

    def _copy(self) -> None:
        if not self._is_copied and self.followed.path.stat().st_size:
            self._move_up()
            shutil.copyfile(self.followed.path, self.followed.logs / "app.log.1")
            self._touched(self.followed.logs / "app.log.1")
            self._is_copied = True

    def _truncate(self) -> None:
        os.truncate(self.followed.path, 0)
        self._touched(self.followed.path)
        self._is_copied = False

    def _step(self) -> None:
        self.followed.now += self.chance.choice([0.01, 0.5, 2.5])
        self.followed.source.step()

    def _killed_step(self) -> None:
        self.killing.arm()
        with suppress(Killed):
            for _ in range(3):
                self._step()
        self.killing.disarm()
        self.followed.restart(killed=True)

    def numbers(self) -> list[int]:
        """Return line numbers in the order of first arrival; a line under two ids appears twice."""
        return [int(line.split()[0]) for line in self.followed.lines()]

    def headers(self) -> int:
        """Count the ids under which the first line common to all files appears."""
        return len({message.id for message in self.followed.all_messages() if message.body == HEADER.encode()})

    def close(self) -> None:
        self.followed.source.close()
        self.followed.log.close()


@pytest.mark.parametrize("histories", [15, pytest.param(400, marks=pytest.mark.long)])
def test_each_line_has_one_id_after_a_kill_at_any_step(
    tmp_path: Path, histories: int, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    kills = 0
    for number in range(seed, seed + histories):
        directory = tmp_path / str(number)
        directory.mkdir()
        history = History(directory, number, monkeypatch)
        history.play()
        assert history.numbers() == list(range(history.count)), f"seed {number}"
        assert history.headers() == history.followed.headers, f"seed {number}"
        kills += history.killing.kills
        history.close()
        shutil.rmtree(directory)
    assert kills > histories
