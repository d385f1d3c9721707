"""Topics that a request brings are created with it, or none of them when they are many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import grpc
import psycopg
import pytest

from tests.broker_process import BrokerProcess
from txmsg.broker.store.topics import TOPICS_MADE_MAX
from txmsg.message import new_transaction_id
from txmsg.wire.codec import CHANNEL_OPTIONS, CODE_KEY
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1 import txmsg_pb2_grpc as rpc

TIMEOUT_S = 60


@pytest.fixture
def notify(broker: BrokerProcess) -> Iterator[rpc.NotifyStub]:
    with grpc.insecure_channel(broker.address, options=CHANNEL_OPTIONS) as channel:
        yield rpc.NotifyStub(channel)


def names(count: int, *, prefix: str = "t") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


def topics(notify_url: str) -> set[str]:
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        return {row[0] for row in connection.execute("select name from txmsg.topic")}


def receive(notify: rpc.NotifyStub, asked: Sequence[str]) -> None:
    subscriptions = [pb.Subscription(topic=each) for each in asked]
    notify.Receive(
        pb.ReceiveRequest(group="g", client_id="c", max_messages=1, subscriptions=subscriptions), timeout=TIMEOUT_S
    )


def send(notify: rpc.NotifyStub, asked: Sequence[str]) -> dict[str, str]:
    """A message to each topic; the code of each that was refused, by topic."""
    ids = {new_transaction_id().bytes: each for each in asked}
    batches = [
        pb.MessageColumns(topic=topic, transaction_ids=each, body=[b""], born_at_us=[0]) for each, topic in ids.items()
    ]
    reply = notify.Send(pb.SendRequest(group="g", batches=batches), timeout=TIMEOUT_S)
    return {ids[each.transaction_id]: each.code for each in reply.errors}


def test_a_receive_that_names_many_unknown_topics_makes_none(notify: rpc.NotifyStub, notify_url: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        receive(notify, names(10_000))
    assert isinstance(caught.value, grpc.Call)
    assert dict(caught.value.trailing_metadata())[CODE_KEY] == "unknown_topic"
    assert "one of 10000 in one request" in caught.value.details()
    assert topics(notify_url) == set()
    receive(notify, names(TOPICS_MADE_MAX))
    assert topics(notify_url) == set(names(TOPICS_MADE_MAX))
    receive(notify, names(2 * TOPICS_MADE_MAX))  # of which half are there
    assert topics(notify_url) == set(names(2 * TOPICS_MADE_MAX))


def test_a_send_to_many_unknown_topics_makes_none_and_stores_its_other_messages(
    notify: rpc.NotifyStub, notify_url: str
) -> None:
    assert send(notify, ["known"]) == {}
    many = names(TOPICS_MADE_MAX + 1)
    assert send(notify, ["known", "no name", *many]) == dict.fromkeys(many, "unknown_topic") | {
        "no name": "invalid_name"
    }
    assert topics(notify_url) == {"known"}
    assert send(notify, many[1:]) == {}
    assert topics(notify_url) == {"known", *many[1:]}
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        assert connection.execute("select count(*) from txmsg.message").fetchone() == (2 + TOPICS_MADE_MAX,)
