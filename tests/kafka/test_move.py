"""A group moves from a directory to Kafka and back by docs/embedded-log-or-kafka.md, while messages arrive."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.user_project import ROOT, files_of
from tests.integration.cli_harness import said
from tests.kafka_server import Kafka
from tests.mirror.load import Load
from tests.mirror.rows import make_queues
from tests.mirror.tailer_process import TailerProcess
from tests.waiting import until
from txmsg.client.app import Txmsg
from txmsg.message import ReceivedMessage

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # a busy machine, and a Kafka

_MIRRORS = ("metaq", "kafka")


@pytest.fixture
def url(notify_url: str) -> Iterator[str]:
    make_queues(notify_url, "trade", 2)
    yield notify_url
    for name in _MIRRORS:
        said("tailer", "drop", "--storage", notify_url, "--name", name, "--yes")


def test_group_moved_to_kafka_and_back_gets_each_message_once(
    url: str, kafka: Kafka, kafka_prefix: str, tmp_path: Path
) -> None:
    page = tmp_path / "move_group.py"
    page.write_text(files_of(ROOT / "docs" / "embedded-log-or-kafka.md")["move_group.py"])
    move: Any = runpy.run_path(str(page))["move"]
    places = {"metaq": str(tmp_path / "log"), "kafka": f"{kafka.address}/{kafka_prefix}"}
    load = Load(url, "trade", 2, seed=17)
    got: Counter[tuple[int | None, int | None]] = Counter()
    with TailerProcess(url, places["metaq"], "--name", "metaq", said=tmp_path / "metaq.said") as first:
        first.start()
        with load.going_on(pause_s=0.05):
            _consume(places["metaq"], got, lambda: len(got) > 100)
            with TailerProcess(url, places["kafka"], "--name", "kafka", said=tmp_path / "kafka.said") as second:
                second.start()
                moved = move("g", places["metaq"], places["kafka"])
                assert sum(moved.values()) == len(got)
                _consume(places["kafka"], got, lambda: len(got) > sum(moved.values()) + 100)
                assert move("g", places["kafka"], places["metaq"]).keys() == moved.keys()
        _consume(places["metaq"], got, lambda: len(got) >= load.count)
    assert set(got.values()) == {1}
    assert got.keys() == {(queue, offset) for queue, end in load.ends.items() for offset in range(end)}


def _consume(where: str, got: Counter[tuple[int | None, int | None]], enough: Any) -> None:
    app = Txmsg(log=where, group="g")

    @app.subscribe("trade", source="log")
    def on_trade(message: ReceivedMessage) -> None:
        got[message.queue, message.offset] += 1

    with app:
        until(enough, within_s=200.0, why=f"{len(got)} messages came")
