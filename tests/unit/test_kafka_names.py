"""Names of txmsg topics in Kafka."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmsg.errors import InvalidName
from txmsg.message import is_name
from txmsg.metaq.kafka.names import kafka_name, topic_of

_NAMES = st.from_regex(r"\A((%RETRY%|%DLQ%)[A-Za-z0-9._%-]{1,30}|[A-Za-z0-9_][A-Za-z0-9._-]{0,30})\Z").filter(is_name)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("user.registered", "user.registered"),
        ("%RETRY%mail", "mail.txmsg-retry"),
        ("%DLQ%mail", "mail.txmsg-dlq"),
        ("%RETRY%mail%host-1", "mail.txmsg-at.host-1.txmsg-retry"),
    ],
)
def test_kafka_names_contain_the_topic_name(topic: str, name: str) -> None:
    assert kafka_name(topic) == name
    assert kafka_name(topic, "shop-") == f"shop-{name}"
    assert topic_of(f"shop-{name}", "shop-") == topic


@given(_NAMES, st.sampled_from(["", "shop-", "a.b."]))
def test_a_kafka_name_maps_back_to_its_topic(topic: str, prefix: str) -> None:
    if topic.endswith((".txmsg-retry", ".txmsg-dlq")):
        return
    assert topic_of(kafka_name(topic, prefix), prefix) == topic


@pytest.mark.parametrize("topic", ["50%", "%RETRY%a.txmsg-at.b", "a.txmsg-retry", "%RETRY%a.txmsg-dlq", "%APPENDS%"])
def test_a_topic_name_invalid_in_kafka_is_refused(topic: str) -> None:
    with pytest.raises(InvalidName, match=topic):
        kafka_name(topic)


@pytest.mark.parametrize("name", ["orders", "shop-", "shop-.hidden", "shop--x", "shop-" + 128 * "a"])
def test_foreign_kafka_topics_are_not_txmsg_topics(name: str) -> None:
    assert topic_of(name, "shop-") is None
