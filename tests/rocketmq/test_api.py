"""Single calls of the gateway, and their errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import grpc
import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as Protobuf

from tests.answered_brokers import AnsweredBrokers, AnsweredChannel
from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.cli_harness import json_of, said
from tests.rocketmq.calls import CALL_S_MAX, GROUP, TOPIC, WAIT_S, Calls
from tests.rocketmq.contexts import AnsweredCall
from tests.rocketmq.gateway import served_gateway
from tests.waiting import until, until_async
from txmsg import Message, Producer, ReceivedMessage
from txmsg.administration.dead_letters import DeadLetterFilter, DeadLettersService
from txmsg.administration.groups import GroupsService, RetryQuery
from txmsg.client.attach import AttachedStreams
from txmsg.client.channel import Brokers
from txmsg.errors import BrokerUnavailable, Unauthenticated, UnknownTopic
from txmsg.message import now_us, us_of_datetime
from txmsg.rocketmq import agreements, routes, server
from txmsg.rocketmq import receivers as receivers_module
from txmsg.rocketmq.admission import CallAdmission, GatewayCaller
from txmsg.rocketmq.agreements import Agreements
from txmsg.rocketmq.api import Api
from txmsg.rocketmq.clients import TOPICS_MAX, GatewayClients
from txmsg.rocketmq.config import GatewayConfig
from txmsg.rocketmq.filters import ALL
from txmsg.rocketmq.ids import Handle, usual_id
from txmsg.rocketmq.receivers import SILENT_S, ClientSubscription, Received, Receivers
from txmsg.rocketmq.routes import TopicRoutes
from txmsg.rocketmq.senders import Senders
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.tasks import Tasks
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.settings.live import GivenSettings
from txmsg.wire.access.principal import ANYONE
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.method import Method
from txmsg.wire.v1.txmsg_pb2 import (
    DeliveredColumns,
    Receipt,
    ReceiveReply,
    ReceiveRequest,
    RouteChanged,
    RouteReply,
    RouteRequest,
)
from txmsg.wire.v1.txmsg_rpc import Notify

Q = TypeVar("Q")
A = TypeVar("A")

_PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make gateways wait for brokers as long as a slow machine takes: by default 2 to 5 s, as clients do."""
    for module in (agreements, routes, server):
        monkeypatch.setattr(module, "_TIMEOUT_S", _PATIENCE_S)
    monkeypatch.setattr(receivers_module, "_GRACE_S", _PATIENCE_S)


@pytest.fixture
def calls(broker: BrokerProcess) -> Iterator[Calls]:
    with served_gateway(GatewayConfig(broker=broker.address, listen="127.0.0.1:0")) as address:
        calls = Calls(address, broker.address)
        with calls.channel:
            yield calls


def test_each_error_has_its_code(calls: Calls) -> None:
    route = pb.QueryRouteRequest(topic=TOPIC)
    assert calls("QueryRoute", route, pb.QueryRouteResponse).status.code == pb.TOPIC_NOT_FOUND
    assert calls("QueryRoute", route, pb.QueryRouteResponse, client_id="").status.code == pb.CLIENT_ID_REQUIRED
    assert calls.send(b"", bytes(16)).entries[0].status.code == pb.MESSAGE_BODY_EMPTY
    assert calls.send(b"x", bytes(16)).status.code == pb.OK
    [queue] = calls("QueryRoute", route, pb.QueryRouteResponse).message_queues
    assert (queue.broker.name, queue.permission) == (calls.broker, pb.READ_WRITE)
    sql = pb.FilterExpression(type=pb.SQL, expression="a > ")
    for fields, code in (
        ({"filter_expression": sql}, pb.ILLEGAL_FILTER_EXPRESSION),
        ({"filter_expression": pb.FilterExpression(expression="none")}, pb.MESSAGE_NOT_FOUND),
    ):
        [said] = calls.receive(0, **fields)
        assert said.status.code == code
    for invisible_ms, text in ((9_999, "too small: 9.999 s"), (43_200_001, "too large: 43200.001 s")):
        invisible = Duration(seconds=invisible_ms // 1000, nanos=invisible_ms % 1000 * 1_000_000)
        [said] = calls.receive(0, invisible_duration=invisible)
        assert said.status.code == pb.ILLEGAL_INVISIBLE_TIME
        assert text in said.status.message
    assert calls.acknowledge("of another server") == pb.INVALID_RECEIPT_HANDLE
    assert calls.acknowledge("1.1.1.1s@nowhere:7700") == pb.INVALID_RECEIPT_HANDLE
    for id_ in ("", " ", usual_id(bytes(15) + b"x")):
        end = pb.EndTransactionRequest(topic=TOPIC, transaction_id=id_, resolution=pb.COMMIT)
        assert calls("EndTransaction", end, pb.EndTransactionResponse).status.code == pb.INVALID_TRANSACTION_ID
    nothing, no_entry = pb.SendMessageRequest(), pb.AckMessageRequest(group=GROUP, topic=TOPIC)
    assert calls("SendMessage", nothing, pb.SendMessageResponse).status.code == pb.MESSAGE_CORRUPTED
    assert calls("AckMessage", no_entry, pb.AckMessageResponse).status.code == pb.BAD_REQUEST
    assert calls.send(b"another", bytes(16)).status.code == pb.ILLEGAL_MESSAGE_ID


def test_message_too_large_for_its_client_becomes_a_dead_letter(calls: Calls) -> None:
    said("group", "create", "mail", "--broker", calls.broker)
    said("group", "alter", "mail", "--retries", "0", "--broker", calls.broker)
    calls.send(bytes(300_000), bytes(16))
    small = Calls(calls.gateway, calls.broker, reply_size_bytes_max=100_000)

    def dead_letters() -> list[dict[str, Any]]:
        with suppress(grpc.RpcError):  # while another reply of the same attempt is lost
            small.receive(1, auto_renew=True, attempt_id="a")
        where = ("--group", "mail", "--broker", calls.broker)
        found: list[dict[str, Any]] = json_of("dead-letter", "list", *where)["dead_letters"]
        return found

    with small.channel:
        with pytest.raises(grpc.RpcError, match="larger than max"):  # as with Node's client, above 4 MiB
            small.receive(auto_renew=True, attempt_id="a")
        [letter] = until(dead_letters)
    assert "5 replies with it did not reach their client: is it larger than the client accepts?" in letter["last_error"]


def test_route_states_the_message_type_of_a_topic_and_other_types_are_refused(calls: Calls) -> None:
    said("topic", "create", "orders", "--type", "fifo", "--broker", calls.broker)
    [queue] = calls("QueryRoute", pb.QueryRouteRequest(topic=TOPIC), pb.QueryRouteResponse).message_queues
    assert list(queue.accept_message_types) == [pb.FIFO]
    refused = calls.send(b"x", bytes(16)).entries[0].status
    assert refused.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "topic 'orders' takes messages of type fifo, and this one is normal" in refused.message
    taken = calls.send(b"x", bytes(16), message_type=pb.FIFO, message_group="k")
    assert taken.status.code == pb.OK


def test_first_check_of_a_half_message_is_at_the_time_set_by_its_producer(calls: Calls) -> None:
    asked = {"orphaned_transaction_recovery_duration": Duration(seconds=900)}
    assert calls.send(b"x", bytes(16), message_type=pb.TRANSACTION, **asked).status.code == pb.OK
    (half,) = json_of("half", "list", "--broker", calls.broker)["halves"]
    stored_at, next_check_at = (datetime.fromisoformat(half[name]) for name in ("stored_at", "next_check_at"))
    assert next_check_at - stored_at == timedelta(minutes=15)


def test_consumer_gets_the_settings_of_its_group_and_a_lite_consumer_is_refused(calls: Calls) -> None:
    where = ("--broker", calls.broker)
    said("group", "create", "ledger", "--orderly", "on", *where)
    said("group", "alter", "ledger", "--retries", "4", "--retry-delays", "500ms 9s", *where)
    for group, is_orderly, attempts_max, delays_s in (("ledger", True, 5, (1, 9)), ("new", False, 17, (1, 600))):
        told = calls.agree(pb.PUSH_CONSUMER, group)
        assert told.status.code == pb.OK
        assert told.settings.subscription.fifo is is_orderly
        policy = told.settings.backoff_policy
        assert policy.max_attempts == attempts_max
        delays = policy.customized_backoff.next
        assert (delays[0].seconds, delays[-1].seconds) == delays_s
        exponential = calls.agree(pb.PUSH_CONSUMER, group, language=8).settings.backoff_policy.exponential_backoff
        assert (exponential.initial.seconds, exponential.max.seconds) == delays_s
    for kind in (pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER):
        assert calls.agree(kind, "ledger").status.code == pb.UNSUPPORTED
        beat = pb.HeartbeatRequest(group=GROUP, client_type=kind)
        assert calls("Heartbeat", beat, pb.HeartbeatResponse).status.code == pb.UNSUPPORTED


async def test_consumer_of_an_unreadable_group_gets_the_default_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client without settings for 3 s does not start."""
    monkeypatch.setattr(agreements, "_TIMEOUT_S", 0.05)
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=GROUP))
    brokers = Brokers(["unix:/nowhere"])
    agreed = await Agreements(brokers).agreed(settings)
    await brokers.close()
    assert not agreed.subscription.fifo
    assert agreed.backoff_policy.max_attempts == 17


async def test_clients_start_while_the_first_broker_is_down(broker: BrokerProcess) -> None:
    _send(broker)
    said("group", "create", "ledger", "--orderly", "on", "--broker", broker.address)
    brokers = Brokers([broker.address, "unix:/nowhere"])
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
    settings.subscription.group.name = "ledger"
    for look in range(2):
        while brokers.current.address == broker.address:
            brokers.avoid(brokers.current)
        if look:
            assert (await Agreements(brokers).agreed(settings)).subscription.fifo
        else:
            assert await TopicRoutes(brokers).queues("orders", pb.Endpoints())
    await brokers.close()


def test_requests_of_starting_clients_do_not_count_messages(
    broker: BrokerProcess, notify_url: str, calls: Calls
) -> None:
    """For a topic with millions of messages that would take longer than a client waits."""
    _send(broker)
    said("group", "create", "ledger", "--orderly", "on", "--broker", broker.address)
    with psycopg.connect(notify_url) as connection:
        counted = "txmsg.half_message, txmsg.scheduled, txmsg.retry, txmsg.dead_letter"
        connection.execute(f"lock table {counted} in access exclusive mode".encode())
        assert calls("QueryRoute", pb.QueryRouteRequest(topic=TOPIC), pb.QueryRouteResponse).status.code == pb.OK
        assert calls.agree(pb.PUSH_CONSUMER, "ledger").settings.subscription.fifo


def test_repeated_send_is_one_message_and_repeated_acknowledgement_counts_once(calls: Calls) -> None:
    assert calls.send(b"one", bytes(16)).entries[0].message_id == usual_id(bytes(16))
    calls.send(b"one", bytes(16))
    handle = calls.receive_one().receipt_handle
    assert calls.acknowledge(handle) == pb.OK
    assert calls.acknowledge(handle) == pb.INVALID_RECEIPT_HANDLE
    [said] = calls.receive(0)
    assert said.status.code == pb.MESSAGE_NOT_FOUND


def test_message_listed_twice_in_an_acknowledgement_is_acknowledged(calls: Calls) -> None:
    calls.send(b"one", bytes(16))
    entry = pb.AckMessageEntry(message_id="m", receipt_handle=calls.receive_one().receipt_handle)
    request = pb.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry, entry])
    for code in (pb.OK, pb.INVALID_RECEIPT_HANDLE):
        reply = calls("AckMessage", request, pb.AckMessageResponse)
        assert [reply.status.code, *(each.status.code for each in reply.entries)] == [code] * 3


def test_a_half_message_cannot_be_recalled(calls: Calls) -> None:
    assert calls.send(b"x", bytes(16), message_type=pb.TRANSACTION).status.code == pb.OK
    request = pb.RecallMessageRequest(topic=TOPIC, recall_handle=usual_id(bytes(16)))
    status = calls("RecallMessage", request, pb.RecallMessageResponse).status
    assert (status.code, status.message.partition(",")[0]) == (pb.BAD_REQUEST, "it is a half message")


def test_message_given_up_by_a_client_is_a_dead_letter_of_its_group(calls: Calls) -> None:
    calls.send(b"one", bytes(16))
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle=calls.receive_one().receipt_handle, delivery_attempt=3
    )
    reply = calls("ForwardMessageToDeadLetterQueue", request, pb.ForwardMessageToDeadLetterQueueResponse)
    assert reply.status.code == pb.OK
    channel = BlockingChannel(calls.broker)
    wanted = DeadLetterFilter(group="mail", error="after 3 attempts")
    counted = channel.call(DeadLettersService.count, wanted, timeout_s=CALL_S_MAX)
    channel.close()
    assert counted.count == 1


def _otherwise(address: str) -> str:
    """Return another address of the same broker."""
    return address.replace("127.0.0.1:", "localhost:")


class UnattachedPresence(AttachedStreams):
    """A presence that has not reached any broker yet."""

    async def run(self) -> None:
        await asyncio.Event().wait()


async def test_starting_gateway_knows_all_brokers_before_its_first_call(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = start_broker(), start_broker()
    channel = BlockingChannel(first.address)
    until(lambda: len(channel.call(Notify.route, RouteRequest(), timeout_s=CALL_S_MAX).brokers) == 2)
    channel.close()
    _send(first)
    monkeypatch.setattr(server, "AttachedStreams", UnattachedPresence)
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    config = GatewayConfig(broker=first.address, listen="127.0.0.1:0")
    serving = asyncio.create_task(server.serve(GivenSettings(config), ready.set_result, stop))

    def told(address: str) -> tuple[set[str], pb.Code]:
        calls = Calls(address, second.address)
        with calls.channel:
            route = calls("QueryRoute", pb.QueryRouteRequest(topic=TOPIC), pb.QueryRouteResponse)
            return {queue.broker.name for queue in route.message_queues}, calls.acknowledge(
                f"1.1.1.1s@{second.address}"
            )

    names, code = await asyncio.to_thread(told, await ready)
    assert (names, code) == ({first.address, second.address}, pb.INVALID_RECEIPT_HANDLE)
    stop.set()
    await serving


class RenamedBrokers(AnsweredBrokers):
    """Two brokers with names other than the given ones, which know a third one; others do not answer."""

    names_given: Final = {"localhost:1": "10.0.0.1:7700", "localhost:2": "10.0.0.2:7700"}

    async def answer(self, address: str, method: Method[Any, Any], request: RouteRequest) -> RouteReply:
        if address not in self.names_given:
            raise BrokerUnavailable("no answer")
        return RouteReply(this=self.names_given[address], brokers=[*self.names_given.values(), "10.0.0.3:7700"])


async def test_gateway_asks_each_configured_broker_for_its_name() -> None:
    brokers = RenamedBrokers(["localhost:0", "localhost:1", "localhost:2"])
    await server.learn(brokers)
    assert brokers.names == ["10.0.0.1:7700", "10.0.0.2:7700", "10.0.0.3:7700"]
    assert brokers.addresses == ["localhost:0", "localhost:1", "localhost:2", "10.0.0.3:7700"]
    assert [brokers.address_of(told) for told in ("10.0.0.2:7700", "localhost:2", "10.0.0.3:7700", "x:1")] == [
        "localhost:2", "localhost:2", "10.0.0.3:7700", None,
    ]  # fmt: skip
    assert [brokers.name_of(told) for told in ("10.0.0.2:7700", "localhost:2", "localhost:0", "x:1")] == [
        "10.0.0.2:7700", "10.0.0.2:7700", "", "",
    ]  # fmt: skip
    await brokers.close()


class Context(AnsweredCall):
    """The context of a call. ends_at_write: its client disconnects when something is written to it."""

    def __init__(self, request: pb.ReceiveMessageRequest | None = None, *, ends_at_write: bool = False) -> None:
        super().__init__({"x-mq-client-id": "client-1"})
        self._request = request
        self._ends_at_write = ends_at_write
        self.written: list[Any] = []

    def time_remaining(self) -> float:
        return CALL_S_MAX

    async def read(self) -> bytes | None:
        return None if self._request is None else self._request.SerializeToString()

    async def write(self, message: Protobuf) -> None:
        self.written.append(message)
        if self._ends_at_write:
            raise asyncio.CancelledError


class Frames(Context):
    """A Telemetry stream: settings, and then nothing until it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = pb.Settings()
        self.is_read = asyncio.Event()
        self.ends = asyncio.Event()

    async def read(self) -> bytes | None:
        if not self.is_read.is_set():
            self.is_read.set()
            return pb.TelemetryCommand(settings=self.settings).SerializeToString()
        await self.ends.wait()
        return None


class Gateway:
    """The parts of a gateway before a broker, within the test's own process."""

    def __init__(self, broker: str) -> None:
        self.brokers = Brokers([broker])
        self.tasks = Tasks()
        self.receivers = Receivers(self.brokers, self.tasks)
        self.clients = GatewayClients(self.brokers, self.tasks)
        senders = Senders(self.brokers, timeout_s=CALL_S_MAX)
        self.routes = TopicRoutes(self.brokers)
        self.api = Api(senders, self.receivers, self.clients, self.routes, Agreements(self.brokers))

    async def receive(
        self, member: ClientSubscription, count: int = 1, *, invisible_s: float = 600, renews: bool = False
    ) -> list[tuple[ReceivedMessage, Handle]]:
        """Receive so many messages."""
        got: list[tuple[ReceivedMessage, Handle]] = []
        while len(got) < count:
            received = await self.receivers.receive(
                member,
                self.brokers.addresses[0],
                ALL,
                count=count - len(got),
                wait_s=WAIT_S,
                invisible_s=invisible_s,
                renews=renews,
            )
            got += received.messages
        return got


@asynccontextmanager
async def gateway_at(broker: BrokerProcess, address: str = "") -> AsyncIterator[Gateway]:
    """Run a gateway. address: of the broker for the gateway, if it differs from the broker's own."""
    gateway = Gateway(address or broker.address)
    try:
        while gateway.brokers.names != [broker.address]:
            await server.learn(gateway.brokers)
        yield gateway
    finally:
        await gateway.tasks.close()
        await gateway.brokers.close()


def _send(broker: BrokerProcess, count: int = 1) -> None:
    with Producer(broker.address, group="shop", timeout_s=60) as producer:
        producer.send_many([Message("orders", b"%d" % number) for number in range(count)])


async def test_unsettled_messages_are_renewed_until_the_client_settles_them_or_leaves(broker: BrokerProcess) -> None:
    _send(broker, 6)
    member, silent = ClientSubscription("mail", "client-1", "orders"), ClientSubscription("mail", "client-2", "orders")
    async with gateway_at(broker) as gateway, gateway_at(broker) as others:
        receivers, api = gateway.receivers, gateway.api
        got = await gateway.receive(member, 5, renews=True)
        settled, elsewhere, refused, held, unsent = (handle for _, handle in got)
        [(_, forgotten)] = await gateway.receive(silent, renews=True)
        assert await receivers.acknowledge(member, [settled]) == set()
        assert await others.receivers.acknowledge(member, [elsewhere]) == set()
        await receivers.refuse(member, refused, "no", delay_s=60)
        assert [receivers.is_renewed(handle) for handle in (settled, elsewhere, refused, held)] == [0, 1, 0, 1]
        receivers.give_back(Received(member, unsent.broker, 0, [(got[-1][0], unsent)]))
        now = asyncio.get_running_loop().time()
        await receivers.renew_once(now)  # the broker reports handles that are no longer held
        assert [receivers.is_renewed(handle) for handle in (elsewhere, held, unsent, forgotten)] == [0, 1, 0, 1]

        frames = Frames()
        frames.ends.set()
        await api.telemetry(frames)
        assert receivers.is_renewed(held), "its stream has broken, but it lives"
        await api.terminated(pb.NotifyClientTerminationRequest(), GatewayCaller("client-1", ANYONE))
        assert [receivers.is_renewed(handle) for handle in (held, forgotten)] == [0, 1]

        await api.heartbeat(pb.HeartbeatRequest(), GatewayCaller("client-2", ANYONE))
        heard_at = asyncio.get_running_loop().time()
        await receivers.renew_once(heard_at + SILENT_S - 1)
        assert receivers.is_renewed(forgotten)
        await receivers.renew_once(heard_at + SILENT_S + 1)
        assert not receivers.is_renewed(forgotten)


class RevokedDoor(CallAdmission):
    """A door whose users are revoked while their streams are open."""

    @asynccontextmanager
    async def staying(self, *_: object) -> AsyncIterator[None]:
        yield
        raise Unauthenticated("revoked")


async def test_messages_of_a_refused_user_are_not_renewed() -> None:
    receivers = Receivers(SimultaneousRenewals(), Tasks())
    how: dict[str, Any] = {"count": 1, "wait_s": 1, "invisible_s": 30, "renews": True}
    received = await receivers.receive(ClientSubscription("mail", "client-1", "orders"), "a:7700", ALL, **how)
    clients = GatewayClients(Brokers(["none:1"]), Tasks())
    none: Any = None
    api = Api(none, receivers, clients, none, none, door=RevokedDoor())
    context = Context()
    [(_, handle)] = received.messages
    assert receivers.is_renewed(handle)
    await api.telemetry(context)
    assert not receivers.is_renewed(handle)
    assert context.written[-1].status.code == pb.UNAUTHORIZED


async def test_reply_size_is_bounded_for_a_client_that_reads_slowly(
    broker: BrokerProcess,
) -> None:
    bodies = [bytes([number]) * 1_500_000 for number in range(3)]
    with Producer(broker.address, group="shop", timeout_s=60) as producer:
        producer.send_many([Message("orders", body) for body in bodies])
    got: list[bytes] = []
    async with gateway_at(broker) as gateway:
        member = ClientSubscription("mail", "client-1", "orders")
        while len(got) < len(bodies):
            received = await gateway.receivers.receive(
                member, broker.address, ALL, count=32, wait_s=WAIT_S, invisible_s=600, renews=False
            )
            assert len(received.messages) <= 2
            got += [message.body for message, _ in received.messages]
    assert sorted(got) == bodies


async def test_messages_not_written_to_their_client_are_redelivered_at_once_without_an_attempt(
    broker: BrokerProcess,
) -> None:
    _send(broker)
    async with gateway_at(broker) as gateway:
        queue = pb.MessageQueue(topic=TOPIC, broker=pb.Broker(name=broker.address))
        request = pb.ReceiveMessageRequest(group=GROUP, message_queue=queue, auto_renew=True)
        with pytest.raises(asyncio.CancelledError):
            await gateway.api.receive(Context(request, ends_at_write=True))
        [(message, _)] = await gateway.receive(ClientSubscription("mail", "client-2", "orders"))
        assert (message.body, message.attempt) == (b"0", 1)


async def test_repeated_receive_of_a_push_consumer_gets_the_messages_of_the_lost_reply(
    broker: BrokerProcess,
) -> None:
    """For example, its deadline had passed: the gateway counted it as delivered, and would renew it for hours."""
    _send(broker)
    queue = pb.MessageQueue(topic=TOPIC, broker=pb.Broker(name=broker.address))

    async with gateway_at(broker) as gateway:

        async def got(attempt: str) -> list[pb.Message]:
            """Return the messages of a receive that is repeated until there are some."""
            found: list[pb.Message] = []
            while not found:
                request = pb.ReceiveMessageRequest(
                    group=GROUP, message_queue=queue, batch_size=1, auto_renew=True, attempt_id=attempt
                )
                context = Context(request)
                await gateway.api.receive(context)
                found = [each.message for each in context.written if each.HasField("message")]
            return found

        [lost] = await got("one")
        [message] = await got("one")
        assert message.system_properties.message_id == lost.system_properties.message_id
        assert message.system_properties.delivery_attempt == 1
        held = Handle.parse(message.system_properties.receipt_handle)
        assert not gateway.receivers.is_renewed(Handle.parse(lost.system_properties.receipt_handle))

        _send(broker)
        [other] = await got("two")
        assert other.system_properties.message_id != message.system_properties.message_id
        assert gateway.receivers.is_renewed(held), "what came by another receive is still its own"


async def test_messages_delivered_to_an_ended_call_are_redelivered_at_once(broker: BrokerProcess) -> None:
    _send(broker)
    async with gateway_at(broker) as gateway:

        class BrokersWithLostReplies(Brokers):
            """Calls that are cancelled once their replies have arrived: the messages are lost."""

            def channel(self, address: str) -> AnsweredChannel:
                real = super().channel(address)

                async def cut(_: str, method: Method[Any, Any], request: ReceiveRequest) -> ReceiveReply:
                    reply: ReceiveReply = await real.call(method, request, timeout_s=CALL_S_MAX)
                    if reply.batches:
                        raise asyncio.CancelledError
                    return reply

                return AnsweredChannel(address, cut)

        cut = BrokersWithLostReplies([broker.address])
        receivers = Receivers(cut, gateway.tasks)
        how: dict[str, Any] = {"count": 1, "wait_s": WAIT_S, "invisible_s": 600, "renews": False}

        async def receives() -> None:
            while True:
                await receivers.receive(ClientSubscription("mail", "client-1", "orders"), broker.address, ALL, **how)

        with pytest.raises(asyncio.CancelledError):
            await receives()
        [(message, _)] = await gateway.receive(ClientSubscription("mail", "client-2", "orders"))
        assert (message.body, message.attempt) == (b"0", 1)
        await cut.close()


async def test_any_gateway_accepts_a_negative_acknowledgement_or_a_new_visibility_timeout(
    broker: BrokerProcess,
) -> None:
    _send(broker, 2)
    member = ClientSubscription("mail", "client-1", "orders")
    async with gateway_at(broker) as gateway, gateway_at(broker) as restarted:
        [(pushed, push)] = await gateway.receive(member, renews=True)
        [(polled, simple)] = await gateway.receive(member, invisible_s=600)

        async def change(handle: Handle, invisible: Duration) -> pb.Code:
            request = pb.ChangeInvisibleDurationRequest(
                group=GROUP, topic=TOPIC, receipt_handle=str(handle), invisible_duration=invisible
            )
            return (await restarted.api.change_invisible(request, GatewayCaller("client-1", ANYONE))).status.code

        assert await change(push, Duration(nanos=1_000_000)) == pb.OK  # Node asks for 1 ms where it means 1 s
        with pytest.raises(CallRefused):
            await change(push, Duration(seconds=1))  # it was negatively acknowledged: no consumer holds the message
        assert await change(simple, Duration(seconds=500)) == pb.OK
        assert await change(simple, Duration(seconds=0)) == pb.OK
        again = await gateway.receive(member, 2)
        assert {message.body: message.attempt for message, _ in again} == {pushed.body: 2, polled.body: 2}
        with pytest.raises(CallRefused):
            await change(simple, Duration(seconds=10))


async def test_retry_delay_is_the_longer_of_requested_delay_and_back_off(
    broker: BrokerProcess,
) -> None:
    _send(broker, 2)
    member = ClientSubscription("mail", "client-1", "orders")
    async with gateway_at(broker) as gateway:
        got = await gateway.receive(member, 2, renews=True)
        asked_at_us = now_us()
        for (_, handle), delay_s in zip(got, (0.001, 3600), strict=True):
            await gateway.receivers.refuse(member, handle, "no", delay_s=delay_s)
        channel = gateway.brokers.channel(broker.address)
        listed = await channel.call(GroupsService.list_retries, RetryQuery(group="mail"), timeout_s=CALL_S_MAX)
        soon, late = sorted(us_of_datetime(each.due_at) - asked_at_us for each in listed.retries if each.due_at)
        assert 1_000_000 <= soon < 1800_000_000, "the group's first back-off is a second"
        assert late >= 3600_000_000


async def test_waiting_receive_ends_without_messages_when_the_gateway_stops(broker: BrokerProcess) -> None:
    _send(broker)
    member, other = ClientSubscription("mail", "client-1", "orders"), ClientSubscription("mail", "client-2", "orders")
    async with gateway_at(broker) as gateway, gateway_at(broker) as others:
        [(_, handle)] = await gateway.receive(member)
        assert await gateway.receivers.acknowledge(member, [handle]) == set()
        queue = pb.MessageQueue(topic=TOPIC, broker=pb.Broker(name=broker.address))
        request = pb.ReceiveMessageRequest(group=GROUP, message_queue=queue, auto_renew=True)
        parked, late = Context(request), Context(request)
        waiting = asyncio.create_task(gateway.api.receive(parked))
        await until_async(lambda: bool(gateway.api.waiting))
        gateway.api.stop()
        await waiting
        _send(broker)
        await gateway.api.receive(late)
        for context in (parked, late):
            [said] = context.written
            assert said.status.code == pb.MESSAGE_NOT_FOUND
        [(message, _)] = await others.receive(other)
        assert message.attempt == 1


class OnlyOrders(TopicRoutes):
    """Only one topic exists; for another one the answer is unknown."""

    async def queues(self, topic: str, _: pb.Endpoints) -> list[pb.MessageQueue]:
        if topic == "away":
            raise BrokerUnavailable("its broker is away")
        if topic != "orders":
            raise UnknownTopic(topic)
        return []


async def test_clients_are_not_attached_to_unknown_topics(broker: BrokerProcess) -> None:
    async with gateway_at(broker) as gateway:
        routes = OnlyOrders(gateway.brokers)
        senders = Senders(gateway.brokers, timeout_s=CALL_S_MAX)
        api = Api(senders, gateway.receivers, gateway.clients, routes, Agreements(gateway.brokers))
        frames = Frames()
        named = ("away", *map(str, range(TOPICS_MAX - 3)), "n/a", "orders", "away")
        frames.settings.publishing.topics.extend(pb.Resource(name=name) for name in named)
        telemetry = asyncio.create_task(api.telemetry(frames))
        await until_async(lambda: gateway.clients.attached == {"orders", "away"})
        frames.ends.set()
        await telemetry
        assert gateway.clients.attached == set()


async def test_gateway_settles_deliveries_of_a_gateway_that_uses_another_broker_address(
    broker: BrokerProcess,
) -> None:
    _send(broker, 2)
    member = ClientSubscription("mail", "client-1", "orders")
    beside = _otherwise(broker.address)
    async with gateway_at(broker, beside) as gateway, gateway_at(broker) as other:
        for delivers, settles in ((gateway, other), (other, gateway)):
            [queue] = await delivers.routes.queues("orders", pb.Endpoints())
            [(_, handle)] = await delivers.receive(member)
            assert queue.broker.name == handle.broker == broker.address
            assert await settles.receivers.acknowledge(member, [handle]) == set()
        assert gateway.brokers.addresses == [beside]


class SimultaneousRenewals(AnsweredBrokers):
    """Two brokers, each with a message, that answer a renewal only when both have got theirs."""

    def __init__(self) -> None:
        super().__init__(["a:7700", "b:7700"])
        for address in self.addresses:
            self.learn(address, RouteChanged(this=address, brokers=self.addresses))
        self._renewals = asyncio.Barrier(2)

    async def answer(self, address: str, method: Method[Any, Any], request: ReceiveRequest) -> ReceiveReply:
        if not request.held:
            receipt = Receipt(queue_id=1, token=1, epoch=1, offset=[0])
            columns = DeliveredColumns(
                topic="orders",
                receipt=receipt,
                transaction_id=bytes(16),
                body=[b"x"],
                born_at_us=[1],
                stored_at_us=[1],
            )
            return ReceiveReply(batches=[columns])
        async with asyncio.timeout(CALL_S_MAX):
            await self._renewals.wait()
        return ReceiveReply(expired=request.held)


async def test_unresponsive_broker_does_not_delay_renewals_at_others() -> None:
    brokers = SimultaneousRenewals()
    receivers = Receivers(brokers, Tasks())
    member = ClientSubscription("mail", "client-1", "orders")
    handles = []
    for broker in brokers.addresses:
        got = await receivers.receive(member, broker, ALL, count=1, wait_s=1, invisible_s=30, renews=True)
        handles += [handle for _, handle in got.messages]
    assert len(handles) == 2
    await receivers.renew_once(asyncio.get_running_loop().time())
    assert not any(map(receivers.is_renewed, handles))


class RevocableDoor(CallAdmission):
    """A door whose clients may receive until the permission is revoked."""

    may = True

    def may_receive(self, *_: object) -> bool:
        return self.may


class RenewingBrokers(SimultaneousRenewals):
    """Brokers that accept every renewal."""

    async def answer(self, address: str, method: Method[Any, Any], request: ReceiveRequest) -> ReceiveReply:
        return ReceiveReply() if request.held else await super().answer(address, method, request)


async def test_messages_are_not_renewed_after_the_client_loses_its_permission() -> None:
    """The client could not acknowledge it, and no other would get it while its heartbeats arrive."""
    receivers, door = Receivers(RenewingBrokers(), Tasks()), RevocableDoor()
    none: Any = None
    api = Api(none, receivers, none, none, none, door=door)
    queue = pb.MessageQueue(topic=TOPIC, broker=pb.Broker(name="a:7700"))
    request = pb.ReceiveMessageRequest(group=GROUP, message_queue=queue, batch_size=1, auto_renew=True)
    await api.receive(Context(request))
    for door.may in (True, False):
        await receivers.renew_once(asyncio.get_running_loop().time())
        assert receivers.held_messages == door.may


def test_ids_of_members_are_unique() -> None:
    members = [
        ClientSubscription("mail", f"{client} {user}", topic)
        for client in ("c", "c" * 150, "c" * 1000)
        for user in ("ada", "eve")
        for topic in ("orders", "o" * 127, "o" * 126 + "p")
    ]
    assert len({member.id for member in members}) == len(members)
    assert all(len(member.id) <= 200 for member in members)


async def test_renewals_continue_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[float] = []
    goes_on = asyncio.Event()

    class Fails(Receivers):
        async def renew_once(self, now: float) -> None:
            rounds.append(now)
            if len(rounds) == 1:
                raise RuntimeError("unexpected")
            goes_on.set()

    monkeypatch.setattr(receivers_module, "RENEWED_S", 0)
    renewing = asyncio.create_task(Fails(Brokers(["none:1"]), Tasks()).renew())
    async with asyncio.timeout(CALL_S_MAX):
        await goes_on.wait()
    renewing.cancel()
