"""A mirror in a Kafka of three nodes, which are killed one after the other while it works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_harness import said
from tests.kafka_server import PrivateKafka, create_topic
from tests.mirror.load import Load
from tests.mirror.rows import make_queues
from tests.mirror.tailer_process import TailerProcess
from tests.waiting import until
from txmsg.verifier.compare import verify

pytestmark = pytest.mark.long

WAIT_S_MAX = 180.0


@pytest.fixture
def url(notify_url: str) -> Iterator[str]:
    make_queues(notify_url, "trade", 3)
    yield notify_url
    said("tailer", "drop", "--storage", notify_url, "--yes")


def test_nodes_that_are_killed_one_after_the_other_with_the_tailer_lose_and_double_nothing(
    url: str, kafka_cluster: PrivateKafka, kafka_prefix: str, tmp_path: Path
) -> None:
    where = f"{kafka_cluster.address}/{kafka_prefix}"
    load = Load(url, "trade", 3, seed=3)
    # Its messages say that they are old, and Kafka's retention goes by that.
    create_topic(kafka_cluster, f"{kafka_prefix}trade", 3, retention_ms="-1")
    with TailerProcess(url, where, said=tmp_path / "said") as tailer:
        tailer.start()
        with load.going_on():
            for node in kafka_cluster.nodes:
                seen = load.count
                until(lambda: load.count > seen + 200)  # noqa: B023 - called at once
                node.kill()
                tailer.kill()
                tailer.start()  # without that node
                seen = load.count
                until(lambda: load.count > seen + 200)  # noqa: B023 - called at once
                node.start()
                kafka_cluster.wait_until_ready()
        report = verify(url, where, wait_s=WAIT_S_MAX)
        assert report.is_equal, "\n".join(map(str, report.differences))
        assert report.messages == load.count
        tailer.stop()
