"""The jars of Spark's source for Kafka, brought by Maven once."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pyspark
import pytest

from tests import maven
from txmsg.spark.sessions import KAFKA_PACKAGE

_ARTIFACTS: Final = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"
_EARLIER: Final = "4.2.0"
"""Works with Spark 4.3, and is there where a mirror of Maven's repositories is behind PyPI."""


@cache
def kafka_jars() -> Path:
    """Their directory; skips the test where they cannot be had."""
    if not any(maven.are_at_hand(_name(version)) for version in (pyspark.__version__, _EARLIER)):
        pytest.skip("Spark's source for Kafka cannot be had: `apt-get install maven` (Debian)")
    try:
        return _jars(pyspark.__version__)
    except subprocess.CalledProcessError:
        return _jars(_EARLIER)


def _jars(version: str) -> Path:
    return maven.jars(_name(version), KAFKA_PACKAGE.replace(pyspark.__version__, version), only=_ARTIFACTS)


def _name(version: str) -> str:
    return f"spark-{version}-kafka"
