"""Authentication and permissions of a gateway with access keys."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from tests.rocketmq.contexts import AnsweredCall, call_with
from txmsg.client.channel import Brokers
from txmsg.errors import BrokerUnavailable, Overloaded, PermissionDenied, Unauthenticated
from txmsg.message import ReceivedMessage, TransactionState
from txmsg.rocketmq import guarded_admission
from txmsg.rocketmq.admission import client_id_of
from txmsg.rocketmq.agreements import Agreements
from txmsg.rocketmq.api import Api
from txmsg.rocketmq.clients import GatewayClient, GatewayClients, Sends
from txmsg.rocketmq.grpc.call import GrpcCall
from txmsg.rocketmq.guarded_admission import NEEDS, GuardedCallAdmission
from txmsg.rocketmq.status import CallRefused, status_of
from txmsg.rocketmq.tasks import Tasks
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.access.guard import Guard
from txmsg.wire.access.keys import AccessKey, KeyFile, new_access_key
from txmsg.wire.access.rules import RuleSet, parse_rule
from txmsg.wire.access.snapshot import AccessSnapshot, User

_NOW = datetime(2026, 5, 31, 15, 30, tzinfo=UTC).timestamp()
_TOPIC, _GROUP = pb.Resource(name="orders"), pb.Resource(name="mail")
_PLAIN = pb.Message(topic=_TOPIC)
_HALF = pb.Message(topic=_TOPIC, system_properties=pb.SystemProperties(message_type=pb.TRANSACTION))
_RECEIVE = pb.ReceiveMessageRequest(group=_GROUP, message_queue=pb.MessageQueue(topic=_TOPIC))
_CONSUMER = ("receive topic:orders", "receive group:mail")


class Place:
    """A door, and the users and rules behind it, which are as the last call of `use_snapshot` says."""

    def __init__(self, directory: Path) -> None:
        path = directory / "access-keys.key"
        KeyFile.make(path)
        self._file = KeyFile(path)
        self._made = {user: new_access_key() for user in ("shop", "eve")}
        self._version = 0
        self.now = _NOW
        self.guard = Guard(clock=lambda: _NOW)
        self.door = GuardedCallAdmission(self.guard, self._file, window_s=900, clock=lambda: self.now)
        self.use()

    def use(self, *rules: str, revoked: Iterable[str] = (), limits: Mapping[str, float] = {}) -> None:
        """Set the rules of shop; eve may do everything."""
        self._version += 1
        keys = [
            AccessKey(id=made.id, user=user, sealed_secret=self._file.seal(made, user))
            for user, made in self._made.items()
            if user not in revoked
        ]
        self.guard.use_snapshot(
            AccessSnapshot(
                version=self._version,
                users={"shop": User(name="shop", limits=limits), "eve": User(name="eve", roles=frozenset(["admin"]))},
                access_keys={key.id: key for key in keys},
                rules=RuleSet(parse_rule("shop", *rule.split(" ")) for rule in rules),
            )
        )

    def call(self, user: str = "shop", **changed: str) -> GrpcCall:
        """Return a call signed by this user."""
        made = self._made[user]
        date = changed.get("date", "20260531T153000Z")
        signed = hmac.digest(changed.get("secret", made.secret).encode(), date.encode(), "sha1").hex()
        headers = {
            "x-mq-client-id": "client",
            "x-mq-date-time": date,
            "authorization": f"MQv2-HMAC-SHA1 Credential={changed.get('key', made.id)}, Signature={signed}",
        }
        return call_with({name: text for name, text in headers.items() if name != changed.get("without")})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_client_ids_differ_between_users(place: Place) -> None:
    shop, eve = [await place.door.enter(place.call(user)) for user in ("shop", "eve")]
    assert (shop.principal.name, eve.principal.name) == ("shop", "eve")
    assert shop.client_id != eve.client_id


@pytest.mark.parametrize("date", ["20260531T151501Z", "20260531T154459Z", "2026-05-31T23:30:00+08:00"])
async def test_date_within_the_window_is_accepted(place: Place, date: str) -> None:
    assert await place.door.enter(place.call(date=date))


async def test_signature_can_be_reused_for_up_to_twice_the_window(place: Place) -> None:
    ahead = place.call(date="20260531T154500Z")
    for later_s in (0, 1800):
        place.now = _NOW + later_s
        assert await place.door.enter(ahead)
    place.now = _NOW + 1801
    with pytest.raises(Unauthenticated):
        await place.door.enter(ahead)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"without": "authorization"}, "the call is not signed"),
        ({"without": "x-mq-date-time"}, "was made with another secret"),
        ({"secret": "wrong"}, "was made with another secret"),
        ({"key": "a" * 16}, "it is unknown or was revoked"),
        ({"date": "20260531T151459Z"}, "more than 900 s from now"),
        ({"date": "20260531T154501Z"}, "more than 900 s from now"),
        ({"date": "someday"}, "more than 900 s from now"),
        ({"date": "0001-01-01T00:00:00+14:00"}, "more than 900 s from now"),
    ],
)
async def test_unsigned_request_is_refused_and_the_reason_is_logged(
    place: Place, changed: dict[str, str], why: str
) -> None:
    told: list[str] = []
    place.guard.on_refused = lambda host, reason: told.append(f"{host}: {reason}")
    with pytest.raises(Unauthenticated, match="access key"):
        await place.door.enter(place.call(**changed))
    assert len(told) == 1
    assert told[0].startswith("127.0.0.1: ")
    assert told[0].endswith(why)


async def test_secret_from_another_file_is_reported_in_the_log(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    KeyFile.make(other)
    door = GuardedCallAdmission(place.guard, KeyFile(other), clock=lambda: _NOW)
    told: list[str] = []
    place.guard.on_refused = lambda _, reason: told.append(reason)
    with pytest.raises(Unauthenticated):
        await door.enter(place.call())
    assert told == ["its secret was encrypted by a key that is not in --access-key-file"]


async def test_a_client_without_an_id_is_refused(place: Place) -> None:
    with pytest.raises(CallRefused) as refused:
        await place.door.enter(place.call(without="x-mq-client-id"))
    assert refused.value.code == pb.CLIENT_ID_REQUIRED


@pytest.mark.parametrize("client_id", ["c" * 513, "c\n", "\0"])
def test_invalid_client_id_is_refused(client_id: str) -> None:
    """Each is remembered for a minute, and 16 KiB fit into headers."""
    assert client_id_of({"x-mq-client-id": "c" * 512}) == "c" * 512
    with pytest.raises(CallRefused) as refused:
        client_id_of({"x-mq-client-id": client_id})
    assert refused.value.code == pb.BAD_REQUEST
    assert len(str(refused.value)) < 200


async def test_wrong_credentials_are_slowed_down_and_right_ones_are_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_admission, "_REFUSING_MAX", 0)
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await place.door.enter(place.call(secret="wrong"))
    with pytest.raises(BrokerUnavailable, match="too many logins are refused"):
        await place.door.enter(place.call(secret="wrong"))
    assert await place.door.enter(place.call())


async def test_all_clients_are_refused_before_users_are_known(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.guard.forget_snapshot()
    with pytest.raises(BrokerUnavailable, match="takes no new connections"):
        await place.door.enter(place.call())


def test_each_served_method_declares_its_permissions() -> None:
    none: Any = None
    methods = Api(none, none, none, none, none).methods()
    assert {path.rpartition("/")[2] for path in methods} == set(NEEDS)


@pytest.mark.parametrize(
    ("method", "request_", "rules"),
    [
        ("QueryRoute", pb.QueryRouteRequest(topic=_TOPIC), ["describe topic:orders"]),
        ("QueryAssignment", pb.QueryAssignmentRequest(topic=_TOPIC, group=_GROUP), _CONSUMER),
        ("SendMessage", pb.SendMessageRequest(messages=[_PLAIN]), ["send topic:orders"]),
        (
            "SendMessage",
            pb.SendMessageRequest(messages=[_PLAIN, _HALF]),
            ["send topic:orders", "send group:orders", "check group:orders"],
        ),
        ("EndTransaction", pb.EndTransactionRequest(topic=_TOPIC), ["send group:orders"]),
        ("RecallMessage", pb.RecallMessageRequest(topic=_TOPIC), ["send topic:orders"]),
        ("ReceiveMessage", _RECEIVE, _CONSUMER),
        ("AckMessage", pb.AckMessageRequest(topic=_TOPIC, group=_GROUP), _CONSUMER),
        (
            "ForwardMessageToDeadLetterQueue",
            pb.ForwardMessageToDeadLetterQueueRequest(topic=_TOPIC, group=_GROUP),
            _CONSUMER,
        ),
        ("ChangeInvisibleDuration", pb.ChangeInvisibleDurationRequest(topic=_TOPIC, group=_GROUP), _CONSUMER),
    ],
)
async def test_call_requires_each_of_its_permissions(
    place: Place, method: str, request_: Any, rules: list[str]
) -> None:
    denied: list[str] = []
    place.guard.on_denied = lambda user, host, what: denied.append(user)
    caller = await place.door.enter(place.call())
    for missing in rules:
        place.use(*(rule for rule in rules if rule != missing))
        with pytest.raises(PermissionDenied, match=f"user shop may not {missing}"):
            place.door.check(method, request_, caller)
    place.use(*rules)
    place.door.check(method, request_, caller)
    assert denied == ["shop"] * len(rules)


@pytest.mark.parametrize("is_revoked", [True, False])
async def test_waiting_call_ends_when_its_user_loses_the_permission(place: Place, is_revoked: bool) -> None:
    place.use(*_CONSUMER)
    caller = await place.door.enter(place.call())
    waits = asyncio.Event()

    async def wait() -> None:
        async with place.door.staying("ReceiveMessage", _RECEIVE, caller):
            waits.set()
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await waits.wait()
    place.use(*_CONSUMER, "send topic:orders")
    for _ in range(2):  # another change, before it has noticed
        place.use(*(_CONSUMER if is_revoked else _CONSUMER[:1]), revoked=["shop"] if is_revoked else ())
    with pytest.raises(Unauthenticated if is_revoked else PermissionDenied):
        await waiting


async def test_other_errors_of_a_waiting_call_are_raised_unchanged(place: Place) -> None:
    place.use(*_CONSUMER)
    caller = await place.door.enter(place.call())
    for error in (TimeoutError("its own"), BrokerUnavailable("away")):
        with pytest.raises(type(error), match=str(error)):
            async with place.door.staying("ReceiveMessage", _RECEIVE, caller):
                raise error


async def test_group_settings_require_permission_to_receive_by_the_group(place: Place) -> None:
    caller = await place.door.enter(place.call())
    frame = pb.TelemetryCommand(settings=pb.Settings(subscription=pb.Subscription(group=_GROUP)))
    with pytest.raises(PermissionDenied, match="user shop may not receive group:mail"):
        place.door.check("Telemetry", frame, caller)
    place.door.check("Telemetry", pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing())), caller)
    place.use("receive group:mail")
    place.door.check("Telemetry", frame, caller)


@pytest.mark.parametrize(("what", "passing"), [("requests", 2), ("messages", 1)])
async def test_user_at_its_limit_is_refused_but_keeps_its_messages_and_others_are_served(
    place: Place, what: str, passing: int
) -> None:
    place.use("send topic:orders", limits={f"{what}_per_s": 1e-6})
    shop, eve = [await place.door.enter(place.call(user)) for user in ("shop", "eve")]
    sent = pb.SendMessageRequest(messages=[_PLAIN] * 3)
    for _ in range(passing):  # a burst, after whose excess the next call would have to wait
        await place.door.pace("SendMessage", sent, shop)
    with pytest.raises(Overloaded, match=f"user shop is at its limit: 1e-06 {what}/s .* pass in 0.5 s") as refused:
        await place.door.pace("SendMessage", sent, shop)
    assert status_of(refused.value).code == pb.TOO_MANY_REQUESTS
    await place.door.pace("Heartbeat", pb.HeartbeatRequest(), shop)
    await place.door.pace("AckMessage", pb.AckMessageRequest(), shop)
    await place.door.pace("EndTransaction", pb.EndTransactionRequest(), shop)
    for _ in range(5):
        await place.door.pace("SendMessage", sent, eve)
    place.use("send topic:orders")
    for _ in range(5):
        await place.door.pace("SendMessage", sent, shop)


class _Stream(AnsweredCall):
    """A Telemetry stream of a client that sends settings regardless of the answers, until it has this many."""

    def __init__(self, headers: dict[str, str], count: int) -> None:
        super().__init__(headers)
        self.told: list[int] = []
        self._count = count
        self._frames = [pb.TelemetryCommand(settings=pb.Settings()).SerializeToString()] * count
        self._is_told = asyncio.Event()

    async def read(self) -> bytes | None:
        if self._frames:
            return self._frames.pop()
        await self._is_told.wait()
        return None

    async def write(self, message: Message) -> None:
        assert isinstance(message, pb.TelemetryCommand)
        self.told.append(message.status.code)
        if len(self.told) == self._count:
            self._is_told.set()


class _AcceptingAgreements(Agreements):
    """Gives every client the settings that it asks for."""

    def __init__(self) -> None:
        super().__init__(Brokers(["none:1"]))
        self.asked: list[pb.Settings] = []

    async def agreed(self, settings: pb.Settings) -> pb.Settings:
        self.asked.append(settings)
        return settings


class _ReevaluationCounter(GatewayClients):
    """Counts the requests to reevaluate clients for check-backs."""

    def __init__(self) -> None:
        super().__init__(Brokers(["none:1"]), Tasks())
        self.looked = 0

    def look_again(self) -> None:
        self.looked += 1


def _clients() -> GatewayClients:
    return GatewayClients(Brokers(["none:1"]), Tasks())


async def test_stream_settings_count_as_requests_of_the_user(place: Place) -> None:
    agreements = _AcceptingAgreements()
    none: Any = None
    api = Api(none, none, _clients(), none, agreements, door=place.door)
    place.use(limits={"requests_per_s": 1e-6})
    stream = _Stream(dict(place.call().headers), count=3)
    await api.telemetry(stream)
    assert stream.told == [pb.OK, pb.OK, pb.TOO_MANY_REQUESTS]
    assert len(agreements.asked) == 2


async def test_call_waiting_for_its_rate_is_refused_if_its_rule_is_removed(place: Place) -> None:
    place.use("send topic:orders", limits={"messages_per_s": 100})
    caller = await place.door.enter(place.call())
    place.use(limits={"messages_per_s": 100})
    with pytest.raises(PermissionDenied, match="may not send topic:orders"):
        await place.door.pace("SendMessage", pb.SendMessageRequest(messages=[_PLAIN]), caller)


async def test_check_back_permission_is_evaluated_at_each_check(place: Place) -> None:
    place.use("check group:orders")
    caller = await place.door.enter(place.call())
    assert place.door.may_be_asked("orders", caller)
    assert not place.door.may_be_asked("trades", caller)
    place.use()
    assert not place.door.may_be_asked("orders", caller)
    place.use("check group:orders", revoked=["shop"])
    assert not place.door.may_be_asked("orders", caller)


async def test_renewal_requires_the_current_receive_permission(place: Place) -> None:
    place.use(*_CONSUMER)
    caller = await place.door.enter(place.call())
    assert place.door.may_receive("mail", "orders", caller)
    assert not place.door.may_receive("mail", "trades", caller)
    assert not place.door.may_receive("news", "orders", caller)
    for rule in _CONSUMER:
        place.use(rule)
        assert not place.door.may_receive("mail", "orders", caller)
    place.use(*_CONSUMER, revoked=["shop"])
    assert not place.door.may_receive("mail", "orders", caller)


async def test_change_of_rules_reevaluates_clients_for_check_backs(place: Place) -> None:
    none: Any = None
    clients = _ReevaluationCounter()
    Api(none, none, clients, none, none, door=place.door)
    place.use("check group:orders")
    place.use()
    assert clients.looked == 2


async def test_concurrent_checks_of_a_transaction_all_get_the_answer() -> None:
    clients = _clients()
    client = GatewayClient("shop", topics={"orders": Sends.HALVES})
    clients.attach(client)
    half = ReceivedMessage("orders", b"half")
    first, second, third = [asyncio.create_task(clients.ask_client("orders", half)) for _ in range(3)]
    for _ in range(3):
        await client.commands.get()
    first.cancel()
    await asyncio.wait([first])
    clients.ended("shop", "orders", half.id_bytes, TransactionState.COMMIT)
    async with asyncio.timeout(60):
        assert set(await asyncio.gather(second, third)) == {TransactionState.COMMIT}


async def test_client_without_permission_is_not_checked_back() -> None:
    clients = _clients()
    stranger = GatewayClient("stranger", lambda _: False)
    clients.attach(stranger)
    clients.names("stranger", ["orders"])
    clients.has_sent("stranger", "orders", half=True)
    assert not clients.attached
    assert await clients.ask_client("orders", ReceivedMessage("orders", b"half")) is TransactionState.UNKNOWN
    assert stranger.commands.empty()
