"""A gateway with access keys before brokers with authentication: accepted clients, permissions, revocation."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.rocketmq.gateway import GatewayProcess, running_gateway
from tests.rocketmq.programs import GO, JAVA, PYTHON, Language, each
from tests.waiting import until
from tests.wire.certificates import Authority
from txmsg import Message, Producer
from txmsg.administration.access import AccessService, LimitUser, NewUser, Revoke, add_access_key
from txmsg.administration.ask import AskBroker
from txmsg.administration.rules import RulesService
from txmsg.message import new_transaction_id
from txmsg.ops.cli.access import asker_of_storage
from txmsg.rocketmq.api import SERVICE
from txmsg.rocketmq.ids import usual_id
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.access.keys import KeyFile, NewAccessKey, new_access_key
from txmsg.wire.access.rules import parse_rule

pytestmark = pytest.mark.long

A = TypeVar("A")

_CALL_S_MAX = 60.0
_WAIT_S = 20
_GATEWAY = (
    ("read", "cluster"),
    ("send", "topic:*"),
    ("receive", "topic:*"),
    ("send", "group:*"),
    ("check", "group:*"),
    ("receive", "group:*"),
)
"""Permissions of the gateway's own user in docs/how-to/rocketmq.md."""
_SHOP = (
    ("send", "topic:orders"),
    ("receive", "topic:orders"),
    ("send", "group:orders"),
    ("check", "group:orders"),
    ("receive", "group:mail"),
    ("receive", "group:push"),
)

_EVE = (("describe", "topic:orders"), ("send", "topic:trades"))


@dataclass
class Place:
    """A gateway over TLS, with its broker, users and access keys."""

    gateway: GatewayProcess
    broker: BrokerProcess
    ask: AskBroker
    authority: bytes
    environment: dict[str, str]
    keys: dict[str, list[NewAccessKey]] = field(default_factory=dict)

    def calls(self, key: NewAccessKey) -> Calls:
        return Calls(self, key)

    def signing(self, user: str) -> dict[str, str]:
        """Return the environment of a program that signs as this user."""
        key = self.keys[user][0]
        return {**self.environment, "ROCKETMQ_ACCESS_KEY": key.id, "ROCKETMQ_SECRET": key.secret}


class Calls:
    """The calls of a client that signs with this access key."""

    def __init__(self, place: Place, key: NewAccessKey) -> None:
        self._broker = place.broker.address
        self._key = key
        self.channel = grpc.secure_channel(place.gateway.address, grpc.ssl_channel_credentials(place.authority))

    def headers(self) -> tuple[tuple[str, str], ...]:
        date = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        signature = hmac.digest(self._key.secret.encode(), date.encode(), "sha1").hex()
        return (
            ("x-mq-client-id", "client"),
            ("x-mq-date-time", date),
            ("authorization", f"MQv2-HMAC-SHA1 Credential={self._key.id}, Signature={signature}"),
        )

    def __call__(self, method: str, request: Any, reply: type[A]) -> A:
        call = self.channel.unary_unary(
            f"/{SERVICE}/{method}", request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,  # type: ignore[attr-defined]
        )  # fmt: skip
        while True:  # as clients do, on a machine that is so busy that a broker does not answer in time
            answer: Any = call(request, metadata=self.headers(), timeout=_CALL_S_MAX)
            if answer.status.code != pb.HA_NOT_AVAILABLE:
                return cast(A, answer)

    def send(self, topic: str, **properties: Any) -> pb.Status:
        made = {"message_id": usual_id(new_transaction_id().bytes), "message_type": pb.NORMAL, **properties}
        message = pb.Message(
            topic=pb.Resource(name=topic), system_properties=pb.SystemProperties(**made), body=b"hello"
        )
        return self("SendMessage", pb.SendMessageRequest(messages=[message]), pb.SendMessageResponse).status

    def recall(self, topic: str, handle: str) -> pb.Status:
        request = pb.RecallMessageRequest(topic=pb.Resource(name=topic), recall_handle=handle)
        return self("RecallMessage", request, pb.RecallMessageResponse).status

    def receive(self, topic: str, group: str = "mail") -> list[pb.ReceiveMessageResponse]:
        """Receive, waiting until there is a message."""
        queue = pb.MessageQueue(topic=pb.Resource(name=topic), broker=pb.Broker(name=self._broker))
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name=group), message_queue=queue, batch_size=1,
            long_polling_timeout=Duration(seconds=_WAIT_S), invisible_duration=Duration(seconds=30),
        )  # fmt: skip
        call = self.channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage", request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )  # fmt: skip
        while True:
            got = list(call(request, metadata=self.headers(), timeout=_CALL_S_MAX))
            if got[0].status.code not in (pb.MESSAGE_NOT_FOUND, pb.HA_NOT_AVAILABLE):
                return got

    def telemetry(self, frames: Iterator[pb.TelemetryCommand]) -> Iterator[pb.TelemetryCommand]:
        call = self.channel.stream_stream(
            f"/{SERVICE}/Telemetry", request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )  # fmt: skip
        return iter(call(frames, metadata=self.headers(), timeout=_CALL_S_MAX))


@pytest.fixture
def place(notify_url: str, start_broker: StartBroker, tmp_path: Path) -> Iterator[Place]:
    """User shop may use the topic orders; eve may describe it, and use the topic trades."""
    ask = asker_of_storage(notify_url)
    key_file, token_file = tmp_path / "access-keys.key", tmp_path / "gateway.token"
    KeyFile.make(key_file)
    token_file.write_text(ask(AccessService.create_user, NewUser(name="gateway")).token or "")
    keys = {}
    for user in ("shop", "eve"):
        ask(AccessService.create_user, NewUser(name=user))
        keys[user] = [new_access_key() for _ in range(2)]
        for new in keys[user]:
            add_access_key(ask, user, new, KeyFile(key_file))
    for user, allowed in (("gateway", _GATEWAY), ("shop", _SHOP), ("eve", _EVE)):
        for action, resource in allowed:
            ask(RulesService.allow, parse_rule(user, action, resource))
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("127.0.0.1")
    broker = start_broker("--auth", "--first-check-s", "1")
    with Producer(broker.address, group="gateway", token=token_file) as producer:
        producer.send(Message("orders", b"first"))
    options = (
        *("--token-file", str(token_file), "--access-key-file", str(key_file)),
        *("--tls-cert", str(certificate), "--tls-key", str(key)),
    )
    environment = {"ROCKETMQ_TLS": "yes", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.file)}
    with running_gateway(broker.address, *options, log=tmp_path / "gateway.log") as gateway:
        yield Place(gateway, broker, ask, authority.file.read_bytes(), environment, keys)


def test_permissions_are_those_of_the_user_and_not_of_the_gateway(place: Place) -> None:
    shop, eve = (place.calls(place.keys[user][0]) for user in ("shop", "eve"))
    due = Timestamp()
    due.FromSeconds(int(datetime.now(UTC).timestamp()) + 3600)
    delayed = usual_id(new_transaction_id().bytes)
    assert shop.send("orders").code == pb.OK
    assert shop.send("orders", message_id=delayed, message_type=pb.DELAY, delivery_timestamp=due).code == pb.OK
    status, got, _ = shop.receive("orders")
    assert status.status.code == pb.OK
    assert got.message.body in {b"first", b"hello"}  # of different queues: either may come first
    denied = eve.send("orders")
    assert denied.code == pb.FORBIDDEN
    assert "user eve may not send topic:orders" in denied.message
    [refused] = eve.receive("orders")
    assert refused.status.code == pb.FORBIDDEN
    [refused] = shop.receive("orders", group="others")
    assert "user shop may not receive group:others" in refused.status.message
    assert eve.recall("orders", delayed).code == pb.FORBIDDEN
    assert eve.recall("trades", delayed).code != pb.OK
    assert shop.recall("orders", delayed).code == pb.OK
    place.ask(AccessService.limit_user, LimitUser(name="shop", limits={"messages_per_s": 1e-6}))
    until(lambda: shop.send("orders").code == pb.TOO_MANY_REQUESTS)
    assert eve.send("trades").code == pb.OK


def test_revoked_access_key_ends_waiting_calls_and_the_other_key_keeps_working(place: Place) -> None:
    old, new = (place.calls(key) for key in place.keys["shop"])
    assert len(old.receive("orders")) == 3
    closing = threading.Event()

    def frames() -> Iterator[pb.TelemetryCommand]:
        yield pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=[pb.Resource(name="orders")])))
        closing.wait(_CALL_S_MAX)

    try:
        with ThreadPoolExecutor(1) as thread:
            told = old.telemetry(frames())
            assert next(told).status.code == pb.OK
            waiting = thread.submit(old.receive, "orders")
            place.ask(AccessService.revoke, Revoke(name="shop", access_key=place.keys["shop"][0].id))
            assert next(told).status.code == pb.UNAUTHORIZED
            assert list(told) == []
            [end] = waiting.result(_CALL_S_MAX)
        assert end.status.code == pb.UNAUTHORIZED
    finally:
        closing.set()
    assert old("Heartbeat", pb.HeartbeatRequest(), pb.HeartbeatResponse).status.code == pb.UNAUTHORIZED
    assert new("Heartbeat", pb.HeartbeatRequest(), pb.HeartbeatResponse).status.code == pb.OK


@pytest.mark.timeout(900)  # what clients need is fetched and compiled, once
@pytest.mark.parametrize("language", each(PYTHON, JAVA, GO))
def test_client_of_each_language_logs_in_over_tls_and_is_checked_back(
    place: Place, language: Language, tmp_path: Path
) -> None:
    client = replace(language, environment={**language.environment, **place.signing("shop")})
    said = client.play("push", place.gateway.address, "orders", home=tmp_path)
    assert {"first", "committed", "checked", "delayed"} <= {line.get("body") for line in said}
    assert "checked" in {line.get("checked") for line in said}


def test_the_official_client_for_python_logs_in_over_tls(place: Place, tmp_path: Path) -> None:
    def play(program: str, user: str, *words: str, **changed: str) -> list[dict[str, Any]]:
        client = replace(PYTHON, environment={**place.signing(user), **changed})
        return client.play(program, place.gateway.address, "orders", *words, home=tmp_path)

    [sent] = play("send", "shop")
    received = play("receive", "shop", "mail", "2")
    assert {"first", "hello"} == {each["body"] for each in received}
    assert sent["id"] in {each["id"] for each in received}
    assert play("refused", "shop", ROCKETMQ_SECRET="wrong") == [{"error": "failed to fetch topic:orders route."}]
    assert any("the access key is not valid here" in log.read_text() for log in tmp_path.rglob("rocketmq*/*.log"))
    assert "the signature was made with another secret" in place.gateway.log.read_text()
    assert play("refused", "eve") == [{"error": "ForbiddenException", "code": pb.FORBIDDEN}]
