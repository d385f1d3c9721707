"""Unknown topics of a request are created with it, or none of them if there are too many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from txmsg.broker.store.topics import TOPICS_MADE_MAX
from txmsg.errors import UnknownTopic
from txmsg.message import new_transaction_id
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify

TIMEOUT_S = 60


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[BlockingChannel]:
    with BlockingChannel(broker.address) as opened:
        yield opened


def names(count: int, *, prefix: str = "t") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


def topics(notify_url: str) -> set[str]:
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        return {row[0] for row in connection.execute("select name from txmsg.topic")}


def receive(channel: BlockingChannel, asked: Sequence[str]) -> None:
    subscriptions = [pb.Subscription(topic=each) for each in asked]
    request = pb.ReceiveRequest(group="g", client_id="c", max_messages=1, subscriptions=subscriptions)
    channel.call(Notify.receive, request, timeout_s=TIMEOUT_S)


def send(channel: BlockingChannel, asked: Sequence[str]) -> dict[str, str]:
    """Send a message to each topic and return the codes of refused ones, by topic."""
    ids = {new_transaction_id().bytes: each for each in asked}
    batches = [
        pb.MessageColumns(topic=topic, transaction_id=each, body=[b""], born_at_us=[0]) for each, topic in ids.items()
    ]
    reply = channel.call(Notify.send, pb.SendRequest(group="g", batches=batches), timeout_s=TIMEOUT_S)
    return {ids[each.transaction_id]: each.code for each in reply.errors}


def test_a_receive_with_too_many_unknown_topics_creates_none(channel: BlockingChannel, notify_url: str) -> None:
    with pytest.raises(UnknownTopic, match="one of 10000 in one request"):
        receive(channel, names(10_000))
    assert topics(notify_url) == set()
    receive(channel, names(TOPICS_MADE_MAX))
    assert topics(notify_url) == set(names(TOPICS_MADE_MAX))
    receive(channel, names(2 * TOPICS_MADE_MAX))  # half of which exist
    assert topics(notify_url) == set(names(2 * TOPICS_MADE_MAX))


def test_a_send_to_too_many_unknown_topics_creates_none_and_stores_its_other_messages(
    channel: BlockingChannel, notify_url: str
) -> None:
    assert send(channel, ["known"]) == {}
    many = names(TOPICS_MADE_MAX + 1)
    assert send(channel, ["known", "no name", *many]) == dict.fromkeys(many, "unknown_topic") | {
        "no name": "invalid_name"
    }
    assert topics(notify_url) == {"known"}
    assert send(channel, many[1:]) == {}
    assert topics(notify_url) == {"known", *many[1:]}
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        assert connection.execute("select count(*) from txmsg.message").fetchone() == (2 + TOPICS_MADE_MAX,)
