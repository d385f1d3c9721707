"""Kafka topics that a read finds: those whose txmsg names match."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txmsg.metaq.kafka.names import kafka_name, topic_of
from txmsg.spark.kafka.topics import expression_of

_PATTERNS = st.text("ab.-_%RETYDLQ*?[!]", max_size=14)
_TOPICS = st.from_regex(r"[ab_][ab._-]{0,5}", fullmatch=True)


@given(patterns=st.lists(_PATTERNS, min_size=1, max_size=3), topic=_TOPICS, prefix=st.sampled_from(["", "p.", "a"]))
@example(patterns=["*"], topic="a", prefix="")
@example(patterns=["b", "?[!a]*"], topic="ab-b", prefix="p.")
@example(patterns=["[a"], topic="a", prefix="")
@example(patterns=["%"], topic="a", prefix="")
def test_the_regular_expression_finds_the_topics_that_the_patterns_match(
    patterns: list[str], topic: str, prefix: str
) -> None:
    name = kafka_name(topic, prefix)
    matches = any(fnmatchcase(topic, pattern) for pattern in patterns) and not name.startswith("__")
    assert bool(re.search(expression_of(patterns, prefix), name)) == matches


@pytest.mark.parametrize("name", ["__consumer_offsets", "trade.order", "p", "q.trade", "p..a", "p.-a"])
def test_foreign_topics_are_not_found(name: str) -> None:
    assert topic_of(name, "p.") is None
    assert not re.search(expression_of(["*"], "p."), name)


@pytest.mark.parametrize("topic", ["%RETRY%audit", "%DLQ%audit"])
def test_group_topics_are_not_found(topic: str) -> None:
    name = kafka_name(topic, "p.")
    assert not re.search(expression_of(["*", topic], "p."), name)
