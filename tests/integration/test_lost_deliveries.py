"""Replies that do not reach the consumer: their messages are redelivered at once, as for the first time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.integration.client_harness import WAIT_S
from tests.raw_client import RawClient
from tests.waiting import until
from txmsg.administration.groups import GroupName, GroupsService
from txmsg.administration.topics import CreateTopic, TopicsService
from txmsg.client import Producer
from txmsg.errors import UnknownGroup
from txmsg.message import Message
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify

SIZE_BYTES = 4 * 1024 * 1024 - 1024
"""Two of them are one reply, much more than the kernel buffers for a client that does not read."""
COUNT = 3
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def notify_url(postgres: PostgresServer, notify_template: str) -> Iterator[str]:
    """A Notify database shared by the tests of this file; each has its own topic."""
    name = f"lost_deliveries_{os.getpid()}"
    yield postgres.create_database(name, template=notify_template)
    postgres.drop_database(name)


def asking(topic: str, client: str, *, line: int = 0, received: int = 0, wait_ms: int = 1000) -> pb.ReceiveRequest:
    return pb.ReceiveRequest(
        group=topic,
        client_id=client,
        subscriptions=[pb.Subscription(topic=topic)],
        max_messages=100,
        wait_ms=wait_ms,
        visibility_timeout_ms=HOUR_MS,
        line=line,
        received=received,
    )


def received(channel: BlockingChannel, request: pb.ReceiveRequest, count: int) -> list[tuple[bytes, int]]:
    """Return so many messages as they arrive: the last byte of each body, and its attempt."""
    got: list[tuple[bytes, int]] = []
    deadline = time.monotonic() + WAIT_S
    while len(got) < count:
        assert time.monotonic() < deadline, f"only {got} came"
        for batch in channel.call(Notify.receive, request, timeout_s=WAIT_S).batches:
            attempts = list(batch.attempt) or [1] * len(batch.body)
            got += [(body[-1:], attempt) for body, attempt in zip(batch.body, attempts, strict=True)]
            request.received = batch.receipt.token
    return sorted(got)


def members_of(channel: BlockingChannel) -> list[str]:
    """Return the members that have polled."""
    try:
        shown = channel.call(GroupsService.show, GroupName(group="large"), timeout_s=WAIT_S)
    except UnknownGroup:
        return []
    return [member.id for member in shown.members]


def test_a_reply_lost_by_the_connection_is_redelivered_on_report(broker: BrokerProcess) -> None:
    with Producer(broker.address, group="p") as producer, BlockingChannel(broker.address) as channel:
        producer.send_many([Message("small", b"%d" % n) for n in range(COUNT)])
        with RawClient(broker.address) as client:
            call = client.begin(Notify.receive.name, asking("small", "c", line=7).SerializeToString())
            sent = client.answer(call)
            assert sent.reply is not None  # the kernel received it all, but the client did not read it
        count = sum(len(batch.body) for batch in pb.ReceiveReply.FromString(sent.reply).batches)
        again = received(channel, asking("small", "c", line=7), count)
        assert [attempt for _, attempt in again] == [1] * count


def test_unread_replies_of_a_slow_reader_go_to_others_when_it_disconnects(broker: BrokerProcess) -> None:
    bodies = [bytes(SIZE_BYTES) + b"%d" % n for n in range(COUNT)]
    with Producer(broker.address, group="p") as producer, BlockingChannel(broker.address) as channel:
        channel.call(TopicsService.create, CreateTopic(topic="large", queues=1), timeout_s=WAIT_S)
        for body in bodies:
            producer.send(Message("large", body))
        with RawClient(broker.address) as client:  # one connection that reads nothing
            for member in ("slow", "slower"):
                client.begin(Notify.receive.name, asking("large", member, wait_ms=60_000).SerializeToString())
            until(lambda: members_of(channel) == ["slow", "slower"])
            others = received(channel, asking("large", "other"), COUNT - 2)
            assert len(others) == COUNT - 2
        taken = others + received(channel, asking("large", "other"), 2)
        assert sorted(taken) == [(b"0", 1), (b"1", 1), (b"2", 1)]
