"""The service apache.rocketmq.v2.MessagingService: turns requests into calls of senders, receivers and clients.

Errors that the client can fix are in the status of the reply, as in RocketMQ. A call itself fails only for a method
that is not supported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as Request

from txmsg.errors import TxmsgError, Unauthenticated, UnknownTopic
from txmsg.message import TransactionState, now_us
from txmsg.rocketmq.admission import CallAdmission, GatewayCaller
from txmsg.rocketmq.agreements import RECEIVED_MAX, Agreements, check_kind
from txmsg.rocketmq.answers import Answers
from txmsg.rocketmq.clients import TOPICS_MAX, GatewayClient, GatewayClients
from txmsg.rocketmq.codec import delivered_message, group_of, message_of, topic_of
from txmsg.rocketmq.filters import wanted_of
from txmsg.rocketmq.grpc.call import GrpcCall, Method
from txmsg.rocketmq.grpc.framing import GrpcFailed
from txmsg.rocketmq.ids import Handle, transaction_of_id
from txmsg.rocketmq.receivers import RENEWED_S, TOO_LATE, ClientSubscription, Received, Receivers
from txmsg.rocketmq.requests import read_request
from txmsg.rocketmq.routes import TopicRoutes
from txmsg.rocketmq.senders import Senders
from txmsg.rocketmq.status import OK, CallRefused, status_of
from txmsg.rocketmq.unzipped_size import UnzippedSizes
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.principal import ANYONE

_log = EventLog(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
INVISIBLE_S: Final = (10.0, 12 * 3600.0)
_WAIT_S_MAX: Final = 20.0
_WAIT_MARGIN_S: Final = 1.0
"""Seconds before a call's deadline at which it is answered."""
_STATES: Final = {pb.COMMIT: TransactionState.COMMIT, pb.ROLLBACK: TransactionState.ROLLBACK}

RequestT = TypeVar("RequestT", bound=Request)


class Api:
    """The methods that official clients call."""

    def __init__(
        self,
        senders: Senders,
        receivers: Receivers,
        clients: GatewayClients,
        routes: TopicRoutes,
        agreements: Agreements,
        *,
        door: CallAdmission | None = None,
    ) -> None:
        self._door = door or CallAdmission()
        self._agreements = agreements
        self._senders = senders
        self._unzipped = UnzippedSizes()
        self._receivers = receivers
        self._clients = clients
        self._routes = routes
        self.answers = Answers()
        self._stopping = asyncio.Event()
        self._waiting: set[asyncio.Timeout] = set()
        self._door.watch(self._rules_changed)

    def _rules_changed(self) -> None:
        self._clients.look_again()

    @property
    def waiting(self) -> int:
        """The number of receives that wait for messages."""
        return len(self._waiting)

    def stop(self) -> None:
        """End waiting receives and Telemetry streams."""
        self._stopping.set()
        now = asyncio.get_running_loop().time()
        for patience in self._waiting:
            if not patience.expired():
                patience.reschedule(now)

    def methods(self) -> dict[str, Method]:
        """Return the handler for each path. Nothing is read from clients that are not admitted."""
        unary: dict[str, tuple[Callable[[Any, GatewayCaller], Awaitable[Any]], Any, Any]] = {
            "QueryRoute": (self.query_route, pb.QueryRouteRequest, pb.QueryRouteResponse),
            "QueryAssignment": (self.query_assignment, pb.QueryAssignmentRequest, pb.QueryAssignmentResponse),
            "Heartbeat": (self.heartbeat, pb.HeartbeatRequest, pb.HeartbeatResponse),
            "NotifyClientTermination": (
                self.terminated,
                pb.NotifyClientTerminationRequest,
                pb.NotifyClientTerminationResponse,
            ),
            "SendMessage": (self.send, pb.SendMessageRequest, pb.SendMessageResponse),
            "EndTransaction": (self.end_transaction, pb.EndTransactionRequest, pb.EndTransactionResponse),
            "RecallMessage": (self.recall, pb.RecallMessageRequest, pb.RecallMessageResponse),
            "AckMessage": (self.acknowledge, pb.AckMessageRequest, pb.AckMessageResponse),
            "ForwardMessageToDeadLetterQueue": (
                self.bury,
                pb.ForwardMessageToDeadLetterQueueRequest,
                pb.ForwardMessageToDeadLetterQueueResponse,
            ),
            "ChangeInvisibleDuration": (
                self.change_invisible,
                pb.ChangeInvisibleDurationRequest,
                pb.ChangeInvisibleDurationResponse,
            ),
        }
        methods = {name: self._answered(name, *method) for name, method in unary.items()}
        methods |= {"ReceiveMessage": self.receive, "Telemetry": self.telemetry}
        return {f"/{SERVICE}/{name}": method for name, method in methods.items()}

    def _answered(
        self,
        name: str,
        method: Callable[[RequestT, GatewayCaller], Awaitable[Any]],
        kind: type[RequestT],
        reply: Callable[..., Any],
    ) -> Method:
        """Wrap a method with one request and one reply: exceptions become a status."""

        async def replied(call: GrpcCall) -> Any:
            try:
                caller, request = await self._entered(name, kind, call)
                return await method(request, caller)
            except (CallRefused, TxmsgError) as exc:
                return reply(status=status_of(exc))
            except GrpcFailed:  # of the call itself
                raise
            except Exception:  # noqa: BLE001 - the root of a call: its client is told that it is none of its making
                _log.exception("rocketmq.call_failed", "%(method)s failed unexpectedly", method=name)
                return reply(
                    status=pb.Status(code=pb.INTERNAL_SERVER_ERROR, message="an error here: see the gateway's log")
                )

        seconds = self.answers.seconds_of(name)

        async def answer(call: GrpcCall) -> None:
            began_at = time.monotonic()
            answered = await replied(call)
            seconds.observe(time.monotonic() - began_at)
            self.answers.note(answered.status)
            await call.write(answered)

        return answer

    async def _admitted(self, call: GrpcCall) -> GatewayCaller:
        """Return the caller; its connection is then no longer a stranger's. Raises CallRefused, TxmsgError."""
        caller = await self._door.enter(call)
        principal = caller.principal
        # From here on the connection does not lose its place to strangers (decision 0100).
        call.admitted("" if principal is ANYONE else principal.name, is_admin=principal.is_admin)
        return caller

    async def _entered(self, name: str, kind: type[RequestT], call: GrpcCall) -> tuple[GatewayCaller, RequestT]:
        """Return the caller and its request, if it is allowed. Raises CallRefused, TxmsgError."""
        caller = await self._admitted(call)
        # Only after admission: until a task reads, a client can send no more than it always may in advance.
        raw = await call.read()
        if raw is None:
            raise CallRefused(pb.BAD_REQUEST, f"the call of {name} has no request")
        request = read_request(kind, raw)
        self._door.check(name, request, caller)
        await self._door.pace(name, request, caller)
        return caller, request

    def _noted(self, error: CallRefused | TxmsgError) -> pb.Status:
        """Return the status for an error of a call that is not answered by one reply."""
        status = status_of(error)
        self.answers.note(status)
        return status

    # ---- who is there, and where

    async def query_route(self, request: pb.QueryRouteRequest, _: GatewayCaller) -> pb.QueryRouteResponse:
        queues = await self._routes.queues(topic_of(request.topic), request.endpoints)
        return pb.QueryRouteResponse(status=OK, message_queues=queues)

    async def query_assignment(
        self, request: pb.QueryAssignmentRequest, _: GatewayCaller
    ) -> pb.QueryAssignmentResponse:
        """Return every broker: each member of a group polls all of them, and a broker gives each message to
        one member.
        """
        group_of(request.group)
        queues = await self._routes.queues(topic_of(request.topic), request.endpoints)
        return pb.QueryAssignmentResponse(
            status=OK, assignments=[pb.Assignment(message_queue=queue) for queue in queues]
        )

    async def heartbeat(self, request: pb.HeartbeatRequest, caller: GatewayCaller) -> pb.HeartbeatResponse:
        check_kind(request.client_type)
        self._receivers.heard(caller.client_id)
        return pb.HeartbeatResponse(status=OK)

    async def terminated(
        self, _: pb.NotifyClientTerminationRequest, caller: GatewayCaller
    ) -> pb.NotifyClientTerminationResponse:
        self._receivers.left(caller.client_id)
        return pb.NotifyClientTerminationResponse(status=OK)

    async def telemetry(self, call: GrpcCall) -> None:
        """Serve a client's stream: the client sends its settings, and the gateway asks for outcomes of transactions."""
        try:
            caller = await self._admitted(call)
            try:
                async with self._door.staying("Telemetry", None, caller):
                    await self._telemetry(caller, call)
            except Unauthenticated:  # else heartbeats say whether it lives: it opens a stream that breaks again
                self._receivers.left(caller.client_id)
                raise
        except (CallRefused, TxmsgError) as exc:
            await call.write(pb.TelemetryCommand(status=self._noted(exc)))

    async def _telemetry(self, caller: GatewayCaller, call: GrpcCall) -> None:
        client = GatewayClient(caller.client_id, lambda topic: self._door.may_be_asked(topic, caller))
        # Before the first frame is read: `names` ignores clients that are not attached.
        self._clients.attach(client)
        reading = asyncio.create_task(self._read(client, caller, call))
        stopping = asyncio.create_task(self._stopping.wait())
        getting: asyncio.Task[pb.TelemetryCommand] | None = None
        try:
            while not (reading.done() or stopping.done()):
                getting = asyncio.create_task(client.commands.get())
                await asyncio.wait({getting, reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    await call.write(getting.result())
                else:
                    getting.cancel()
            if reading.done():
                reading.result()
        finally:
            self._clients.detach(client)
            for task in (reading, stopping, getting):
                if task is not None:
                    task.cancel()

    async def _read(self, client: GatewayClient, caller: GatewayCaller, call: GrpcCall) -> None:
        while (raw := await call.read()) is not None:
            frame = read_request(pb.TelemetryCommand, raw)
            try:
                await self._door.pace("Telemetry", frame, caller)
            except TxmsgError as exc:
                await client.commands.put(pb.TelemetryCommand(status=self._noted(exc)))
                continue
            if frame.HasField("settings"):
                try:
                    self._door.check("Telemetry", frame, caller)
                    agreed = await self._agreements.agreed(frame.settings)
                except (CallRefused, TxmsgError) as exc:
                    await client.commands.put(pb.TelemetryCommand(status=self._noted(exc)))
                else:
                    await client.commands.put(pb.TelemetryCommand(status=OK, settings=agreed))
                topics = await self._known(frame.settings.publishing.topics)
                self._clients.names(client.id, topics)

    async def _known(self, named: Iterable[pb.Resource]) -> list[str]:
        """Return those of the last topics that exist, or may exist. Unknown ones are refused at their use."""
        topics = []
        for resource in list(named)[-TOPICS_MAX:]:
            with suppress(CallRefused):
                topics.append(topic_of(resource))
        unknown = await asyncio.gather(*map(self._is_unknown, topics))
        return [topic for topic, is_unknown in zip(topics, unknown, strict=True) if not is_unknown]

    async def _is_unknown(self, topic: str) -> bool:
        try:
            await self._routes.queues(topic, pb.Endpoints())
        except UnknownTopic:
            return True
        except (CallRefused, TxmsgError):  # a broker is away: it may exist
            return False
        return False

    # ---- sending

    async def send(self, request: pb.SendMessageRequest, caller: GatewayCaller) -> pb.SendMessageResponse:
        if not request.messages:
            raise CallRefused(pb.MESSAGE_CORRUPTED, "there is no message to send")
        if len(request.messages) == 1:  # as all official clients send: no task of its own for it
            entries = [await self._send_message(request.messages[0], caller)]
        else:
            entries = await asyncio.gather(*(self._send_message(message, caller) for message in request.messages))
        statuses = {entry.status.code: entry.status for entry in entries}
        status = next(iter(statuses.values())) if len(statuses) == 1 else pb.Status(code=pb.MULTIPLE_RESULTS)
        return pb.SendMessageResponse(status=status, entries=entries)

    async def _send_message(self, sent: pb.Message, caller: GatewayCaller) -> pb.SendResultEntry:
        properties = sent.system_properties
        is_half = properties.message_type == pb.TRANSACTION
        try:
            sent_at_us = now_us()
            with self._unzipped.held(caller.payer, sent) as held:
                message = message_of(sent, sent_at_us)
                self._unzipped.unzipped(caller.payer, held, len(message.body))
                await self._senders.send_message(
                    transaction_of_id(properties.message_id), message, born_at_us=sent_at_us, half=is_half
                )
            self._clients.has_sent(caller.client_id, message.topic, half=is_half)
        except (CallRefused, TxmsgError) as exc:
            return pb.SendResultEntry(status=status_of(exc))
        id_ = properties.message_id
        return pb.SendResultEntry(
            status=OK, message_id=id_, transaction_id=id_, recall_handle=id_ if message._is_delayed else ""
        )

    async def end_transaction(
        self, request: pb.EndTransactionRequest, caller: GatewayCaller
    ) -> pb.EndTransactionResponse:
        """Report an outcome: COMMIT and ROLLBACK are final. Any other leaves the transaction undecided; it is checked
        later.
        """
        transaction_id = transaction_of_id(
            request.transaction_id or request.message_id, "transaction id", pb.INVALID_TRANSACTION_ID
        )
        topic, state = topic_of(request.topic), _STATES.get(request.resolution, TransactionState.UNKNOWN)
        if state is not TransactionState.UNKNOWN:
            await self._senders.end_transaction(topic, transaction_id, state)
        self._clients.ended(caller.client_id, topic, transaction_id, state)
        return pb.EndTransactionResponse(status=OK)

    async def recall(self, request: pb.RecallMessageRequest, _: GatewayCaller) -> pb.RecallMessageResponse:
        if not await self._senders.recall(topic_of(request.topic), transaction_of_id(request.recall_handle)):
            raise CallRefused(pb.MESSAGE_NOT_FOUND, "the message is due: it is being delivered")
        return pb.RecallMessageResponse(status=OK, message_id=request.recall_handle)

    # ---- receiving

    async def receive(self, call: GrpcCall) -> None:
        """Stream the status, then the messages and the time of delivery; only the status if there are no messages."""
        try:
            caller, request = await self._entered("ReceiveMessage", pb.ReceiveMessageRequest, call)
            invisible_s = _invisible_s(request)
            member = ClientSubscription(
                group_of(request.group), caller.client_id, topic_of(request.message_queue.topic)
            )
            async with self._door.staying("ReceiveMessage", request, caller):
                received = await self._unless_stopped(
                    self._receivers.receive(
                        member,
                        request.message_queue.broker.name,
                        wanted_of(request.filter_expression),
                        count=max(1, min(request.batch_size, RECEIVED_MAX)),
                        wait_s=_wait_s(request, call),
                        invisible_s=invisible_s,
                        renews=request.auto_renew,
                        attempt=request.attempt_id,
                        may_hold=lambda: self._door.may_receive(member.group, member.topic, caller),
                    )
                )
        except (CallRefused, TxmsgError) as exc:
            await call.write(pb.ReceiveMessageResponse(status=self._noted(exc)))
            return
        if received is None or not received.messages:
            nothing = pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
            await call.write(pb.ReceiveMessageResponse(status=nothing))
            return
        try:
            await call.write(pb.ReceiveMessageResponse(status=OK))
            for message, handle in received.messages:
                shown = delivered_message(message, handle, invisible_s)
                await call.write(pb.ReceiveMessageResponse(message=shown))
            last = pb.ReceiveMessageResponse()
            last.delivery_timestamp.GetCurrentTime()
            await call.write(last)
        except BaseException:  # above all a cancellation: the client has ended the call, or its time is over
            self._receivers.give_back(received)
            raise

    async def _unless_stopped(self, receiving: Awaitable[Received]) -> Received | None:
        """Return the received messages; None if the gateway stops: then the receive is cancelled, and
        nothing is taken.
        """
        try:
            async with asyncio.timeout(0 if self._stopping.is_set() else None) as patience:
                self._waiting.add(patience)
                return await receiving
        except TimeoutError:
            return None
        finally:
            self._waiting.discard(patience)

    async def acknowledge(self, request: pb.AckMessageRequest, caller: GatewayCaller) -> pb.AckMessageResponse:
        member = ClientSubscription(group_of(request.group), caller.client_id, topic_of(request.topic))
        if not request.entries:
            raise CallRefused(pb.BAD_REQUEST, "there is no message to acknowledge: `entries` is empty")
        handles = [Handle.parse(entry.receipt_handle) for entry in request.entries]
        late = await self._receivers.acknowledge(member, dict.fromkeys(handles))  # each once
        too_late = pb.Status(code=pb.INVALID_RECEIPT_HANDLE, message=TOO_LATE)
        return pb.AckMessageResponse(
            status=too_late if late.issuperset(handles) else pb.Status(code=pb.MULTIPLE_RESULTS) if late else OK,
            entries=[
                pb.AckMessageResultEntry(
                    message_id=entry.message_id,
                    receipt_handle=entry.receipt_handle,
                    status=too_late if handle in late else OK,
                )
                for entry, handle in zip(request.entries, handles, strict=True)
            ],
        )

    async def bury(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, caller: GatewayCaller
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        member = ClientSubscription(group_of(request.group), caller.client_id, topic_of(request.topic))
        error = f"the consumer gave it up after {request.delivery_attempt} attempts"
        await self._receivers.bury(member, Handle.parse(request.receipt_handle), error)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def change_invisible(
        self, request: pb.ChangeInvisibleDurationRequest, caller: GatewayCaller
    ) -> pb.ChangeInvisibleDurationResponse:
        """Refuse a message, for push consumers. For simple consumers, extend or shorten its time, or return it."""
        member = ClientSubscription(group_of(request.group), caller.client_id, topic_of(request.topic))
        handle = Handle.parse(request.receipt_handle)
        invisible_s = _seconds(request.invisible_duration)
        if not 0 <= invisible_s <= INVISIBLE_S[1]:
            raise CallRefused(pb.ILLEGAL_INVISIBLE_TIME, f"{invisible_s:g} s are not 0 s to {INVISIBLE_S[1]:g} s")
        if handle.is_renewed:
            await self._receivers.refuse(member, handle, "the consumer refused it", delay_s=invisible_s)
        else:
            await self._receivers.set_invisible(member, handle, invisible_s)
        return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=request.receipt_handle)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _invisible_s(request: pb.ReceiveMessageRequest) -> float:
    if request.auto_renew:
        return RENEWED_S
    invisible_s = _seconds(request.invisible_duration)
    if not INVISIBLE_S[0] <= invisible_s <= INVISIBLE_S[1]:
        how = "small" if invisible_s < INVISIBLE_S[0] else "large"  # in RocketMQ's words, which people look for
        raise CallRefused(
            pb.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too {how}: {invisible_s} s, where {INVISIBLE_S[0]:g} s to {INVISIBLE_S[1]:g} s are "
            "allowed",
        )
    return invisible_s


def _wait_s(request: pb.ReceiveMessageRequest, call: GrpcCall) -> float:
    left_s = call.time_remaining()
    asked_s = _seconds(request.long_polling_timeout) if request.HasField("long_polling_timeout") else _WAIT_S_MAX
    return max(0.0, min(asked_s, _WAIT_S_MAX, _WAIT_S_MAX if left_s is None else left_s - _WAIT_MARGIN_S))
