"""Tests of a mirror into any kind of log. Modules with a fixture `where` inherit from the class."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.cli_harness import said
from tests.mirror.checks import kill_at_any_moment, require_equal
from tests.mirror.load import Load
from tests.mirror.rows import lose_messages
from tests.mirror.tailer_process import TailerProcess


class EachLog:
    """A base class for test classes."""

    def test_tailer_killed_at_any_moment_under_load_mirrors_every_message(
        self, url: str, where: Path | str, load: Load, tailer: TailerProcess
    ) -> None:
        kill_at_any_moment(tailer, load)
        require_equal(url, where, load.count)
        tailer.stop()

    def test_messages_dropped_by_retention_before_mirroring_are_a_counted_hole(
        self, url: str, where: Path | str, load: Load, tailer: TailerProcess
    ) -> None:
        load.write(20)
        tailer.start()
        require_equal(url, where, load.count)
        tailer.kill()
        mirrored = dict(load.ends)
        load.write(40)
        lost = {queue: end - mirrored[queue] for queue, end in load.ends.items()}
        said("tailer", "drop", "--storage", url, "--yes")  # else retention waits for the mirror, and the slot has all
        lose_messages(url)
        before = load.count
        tailer.start()  # once without messages after the gap
        tailer.stop()
        load.write(20, segment=2)
        tailer.start()
        report = require_equal(url, where, load.count - before)
        assert report.in_holes == sum(lost.values()) > 0
        assert report.log_only == sum(mirrored.values())
        told = re.findall(r"\((\d+) messages\) were dropped from the table before they were mirrored", tailer.said)
        assert sorted(map(int, told)) == sorted(lost.values())
        tailer.stop()
