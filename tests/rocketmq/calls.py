"""Single calls of a RocketMQ client, without the client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from txmsg.rocketmq.api import SERVICE
from txmsg.rocketmq.ids import usual_id
from txmsg.rocketmq.v2 import messaging_pb2 as pb

A = TypeVar("A")

CALL_S_MAX: Final = 120.0
WAIT_S: Final = 20
TOPIC: Final = pb.Resource(name="orders")
GROUP: Final = pb.Resource(name="mail")


class Calls:
    """The calls of a client."""

    def __init__(self, gateway: str, broker: str, *, reply_size_bytes_max: int = -1) -> None:
        self.gateway = gateway
        self.channel = grpc.insecure_channel(
            gateway, options=[("grpc.max_receive_message_length", reply_size_bytes_max)]
        )
        self.broker = broker

    def __call__(self, method: str, request: Any, reply: type[A], client_id: str = "c") -> A:
        call = self.channel.unary_unary(
            f"/{SERVICE}/{method}", request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,  # type: ignore[attr-defined]
        )  # fmt: skip
        metadata = (("x-mq-client-id", client_id),) if client_id else ()
        answer: A = call(request, metadata=metadata, timeout=CALL_S_MAX)
        return answer

    def send(self, body: bytes, id_: bytes, **properties: Any) -> pb.SendMessageResponse:
        made = pb.SystemProperties(**{"message_id": usual_id(id_), "message_type": pb.NORMAL, **properties})
        message = pb.Message(topic=TOPIC, system_properties=made, body=body)
        return self("SendMessage", pb.SendMessageRequest(messages=[message]), pb.SendMessageResponse)

    def receive(self, wait_s: int = WAIT_S, **fields: Any) -> list[pb.ReceiveMessageResponse]:
        return list(self.begin_receive(wait_s, **fields))

    def begin_receive(self, wait_s: int = WAIT_S, **fields: Any) -> Any:
        """Begin a ReceiveMessage call, whose answers arrive one by one."""
        queue = pb.MessageQueue(topic=TOPIC, broker=pb.Broker(name=self.broker))
        asked = {"batch_size": 1, "invisible_duration": Duration(seconds=600), **fields}
        request = pb.ReceiveMessageRequest(
            group=GROUP, message_queue=queue, long_polling_timeout=Duration(seconds=wait_s), **asked
        )
        call = self.channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage", request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )  # fmt: skip
        return call(request, metadata=(("x-mq-client-id", "c"),), timeout=CALL_S_MAX)

    def agree(self, kind: pb.ClientType, group: str, language: int = 0) -> pb.TelemetryCommand:
        """Return the settings that a consumer gets in return for its own."""
        subscription = pb.Subscription(group=pb.Resource(name=group))
        settings = pb.Settings(client_type=kind, subscription=subscription, user_agent=pb.UA(language=language))
        told: pb.TelemetryCommand = next(self.telemetry(iter([pb.TelemetryCommand(settings=settings)])))
        return told

    def telemetry(self, frames: Iterator[pb.TelemetryCommand]) -> Any:
        """Open a Telemetry stream, which yields the gateway's frames."""
        call = self.channel.stream_stream(
            f"/{SERVICE}/Telemetry", request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )  # fmt: skip
        return call(frames, metadata=(("x-mq-client-id", "c"),), timeout=CALL_S_MAX)

    def receive_one(self) -> pb.SystemProperties:
        """Return the next message."""
        while not (found := [each.message for each in self.receive() if each.HasField("message")]):
            pass  # none arrived within one receive
        [message] = found
        return message.system_properties

    def acknowledge(self, handle: str) -> pb.Code:
        entry = pb.AckMessageEntry(message_id="m", receipt_handle=handle)
        request = pb.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry])
        return self("AckMessage", request, pb.AckMessageResponse).status.code
