"""The jars of Spark's Kafka source, downloaded by Maven once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests import maven
from txmsg.spark.sessions import KAFKA_PACKAGE

_ARTIFACTS: Final = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"
_NAME: Final = f"spark-{KAFKA_PACKAGE.rpartition(':')[2]}-kafka"


@cache
def kafka_jars() -> Path:
    """Return their directory; skips the test if they cannot be downloaded."""
    if not maven.are_at_hand(_NAME):
        pytest.skip("Spark's source for Kafka cannot be had: `apt-get install maven` (Debian)")
    return maven.jars(_NAME, KAFKA_PACKAGE, only=_ARTIFACTS)
