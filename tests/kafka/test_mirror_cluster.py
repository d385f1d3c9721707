"""A mirror in a Kafka of three nodes, killed one after the other while it is written and read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.cli_harness import said
from tests.kafka_server import PrivateKafka, create_topic
from tests.metaq.consumers import Seen
from tests.mirror.load import Load
from tests.mirror.rows import make_queues
from tests.mirror.tailer_process import TailerProcess
from tests.waiting import until
from txmsg.binlog.verifier.compare import verify
from txmsg.client.app import Txmsg

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # four times a node of three starts again

WAIT_S_MAX = 180.0


@pytest.fixture
def url(notify_url: str) -> Iterator[str]:
    make_queues(notify_url, "trade", 3)
    yield notify_url
    said("tailer", "drop", "--storage", notify_url, "--yes")


def times_set_back(offsets: list[int], end: int) -> int:
    """Count redeliveries from an earlier message on. Fails if one was skipped, or out of order."""
    reached = times = 0
    before = -1
    for offset in offsets:
        if offset != before + 1:
            assert offset <= reached, f"{offset} came after {before}, when {reached} was to come"
            times += 1
        before = offset
        reached = max(reached, offset + 1)
    assert reached == end
    return times


def behind(groups: Mapping[str, Seen], ends: Mapping[int, int]) -> dict[str, dict[int, str]]:
    """Return each group's queues with lag, and its offsets there."""
    reached = {
        group: {queue: max(seen_by.offsets.get(queue, [-1])) + 1 for queue in ends} for group, seen_by in groups.items()
    }
    return {
        group: {queue: f"{offset} of {ends[queue]}" for queue, offset in queues.items() if offset < ends[queue]}
        for group, queues in reached.items()
        if any(offset < ends[queue] for queue, offset in queues.items())
    }


def test_killed_nodes_neither_lose_nor_duplicate_messages_of_a_mirror(
    url: str, kafka_cluster: PrivateKafka, kafka_prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer whose group coordinator is killed may lose its position: only then messages are redelivered to it."""
    caplog.set_level(logging.WARNING, "txmsg.metaq.consumer.balance")
    where = f"{kafka_cluster.address}/{kafka_prefix}"
    load = Load(url, "trade", 3, seed=3)
    # Its messages have old timestamps, which Kafka's retention uses.
    create_topic(kafka_cluster, f"{kafka_prefix}trade", 3, retention_ms="-1")
    groups = {name: Seen() for name in ("dashboard", "search")}
    with ExitStack() as stack:
        tailer = stack.enter_context(TailerProcess(url, where, said=tmp_path / "said"))
        tailer.start()
        for group, seen_by in groups.items():
            app = Txmsg(log=where, group=group)
            app.subscribe("trade", source="log")(seen_by)
            stack.enter_context(app)
        with load.going_on():
            for seen_by in groups.values():  # it works and is read: Kafka has made its own topics, too
                until(lambda: len(seen_by.messages) > 200, within_s=WAIT_S_MAX)  # noqa: B023
            first, *others = kafka_cluster.nodes
            for node, with_tailer in [(first, False), *((each, True) for each in (first, *others))]:
                seen = load.count
                until(lambda: load.count > seen + 200)  # noqa: B023 - called at once
                node.kill()
                if with_tailer:
                    tailer.kill()
                    tailer.start()
                for seen_by in groups.values():  # without that node
                    seen = len(seen_by.messages)
                    until(lambda: len(seen_by.messages) > seen + 200, within_s=WAIT_S_MAX)  # noqa: B023
                node.start()
                kafka_cluster.wait_until_ready()
        report = verify(url, where, wait_s=WAIT_S_MAX)
        assert report.is_equal, "\n".join(map(str, report.differences))
        assert report.messages == load.count
        try:
            until(lambda: not behind(groups, load.ends), within_s=WAIT_S_MAX)
        except AssertionError:
            pytest.fail(f"messages did not come to their consumers: {behind(groups, load.ends)}")
        tailer.stop()
    for group, seen_by in groups.items():
        lost = caplog.text.count(f"group {group}: member")
        assert seen_by.offsets.keys() == load.ends.keys()
        for queue, offsets in seen_by.offsets.items():
            assert times_set_back(offsets, load.ends[queue]) <= lost, f"group {group}, queue {queue}: doubled"
