"""Executors in their own processes, as on a cluster: both kinds of log are read there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka_server import Kafka
from tests.metaq.logs import append, bodies
from tests.spark.kafka_jars import kafka_jars
from txmsg.metaq.location import open_log

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # JVMs start

_WAIT_S_MAX = 400.0
_COUNT = 50


@pytest.mark.parametrize("kind", ["embedded", "kafka"])
def test_separate_executors_can_read_a_log(
    kind: str, request: pytest.FixtureRequest, kafka_prefix: str, tmp_path: Path
) -> None:
    if kind == "kafka":
        kafka: Kafka = request.getfixturevalue("kafka")
        where = f"{kafka.address}/{kafka_prefix}"
    else:
        where = str(tmp_path / "log")
    with open_log(where, append=True) as log:
        for queue in range(3):
            append(log, "t", queue, _COUNT)
    command = [sys.executable, "-m", "tests.spark.executors", where, str(kafka_jars()), str(tmp_path / "checkpoint")]
    with (tmp_path / "said").open("w") as said:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=said, text=True, check=False, timeout=_WAIT_S_MAX)
    assert done.returncode == 0, (tmp_path / "said").read_text()
    sizes = [len(body) for queue in range(3) for body in bodies("t", queue, 0, _COUNT)]
    expected = [3 * _COUNT, 3 * sum(range(_COUNT)), sum(sizes)]
    assert json.loads(done.stdout) == {"batch": expected, "stream": expected}
