"""A mirror in a Kafka without a group coordinator: its offsets topic needs more copies than there are nodes.

librdkafka's `send_offsets_to_transaction` waits then without an end, whatever time it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests import kafka_server
from tests.integration.cli_harness import said
from tests.kafka.test_mirror_writers import batch_of
from tests.kafka_server import PrivateKafka
from tests.mirror.checks import require_equal
from tests.mirror.load import Load
from tests.mirror.rows import make_queues
from tests.mirror.tailer_process import TailerProcess
from tests.waiting import until
from txmsg.binlog.mirror import kafka_sink
from txmsg.binlog.mirror.kafka_sink import KafkaSink
from txmsg.errors import BrokerUnavailable

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # a node of Kafka starts twice

WAIT_S_MAX = 180.0
_COPIES = "offsets.topic.replication.factor"


@pytest.fixture
def lone(memory_dir: Path) -> Iterator[PrivateKafka]:
    """A node that cannot coordinate groups until it is configured to."""
    if not kafka_server.is_installed():
        pytest.skip(kafka_server.HOW_TO_INSTALL)
    with PrivateKafka(memory_dir / "lone-kafka", settings={_COPIES: 3}) as kafka:
        yield kafka


def test_tailer_without_a_coordinator_reports_it_and_continues_once_there_is_one(
    lone: PrivateKafka, notify_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"{lone.address}/other."
    with monkeypatch.context() as patch:
        patch.setattr(kafka_sink, "_TIMEOUT_S", 3.0)
        with closing(KafkaSink(where)) as sink, pytest.raises(BrokerUnavailable, match="noting where the mirror is"):
            sink.append([batch_of(range(3))])

    make_queues(notify_url, "trade", 2)
    load = Load(notify_url, "trade", 2, seed=1)
    load.write(20)
    with ExitStack() as stack:
        stack.callback(said, "tailer", "drop", "--storage", notify_url, "--yes")
        where = f"{lone.address}/shop."
        tailer = stack.enter_context(TailerProcess(notify_url, where, said=tmp_path / "said"))
        tailer.launch()
        until(lambda: "reading where the mirror is in kafka://" in tailer.said, within_s=WAIT_S_MAX)
        [node] = lone.nodes
        node.kill()
        node.set({_COPIES: 1})
        node.start()
        tailer.await_state("tailing")
        require_equal(notify_url, where, load.count)
        tailer.stop()
