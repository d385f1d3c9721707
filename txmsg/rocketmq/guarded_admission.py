"""Admits users who sign their calls with an access key, as far as rules allow. Belongs to one loop.

Brokers know only the gateway's own user. So the gateway checks each call by the brokers' users and rules, like a MetaQ
server that follows brokers; calls that it refuses do not reach a broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from txmsg.errors import BrokerUnavailable, Overloaded, PermissionDenied, Unauthenticated
from txmsg.rocketmq.admission import CallAdmission, GatewayCaller, client_id_of
from txmsg.rocketmq.config import WINDOW_S
from txmsg.rocketmq.grpc.call import GrpcCall
from txmsg.rocketmq.signature import Signature, read_signature
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.access.denied import DeniedCalls
from txmsg.wire.access.failures import Failures
from txmsg.wire.access.guard import Guard, host_of
from txmsg.wire.access.keys import AccessKey, KeyFile
from txmsg.wire.access.limits import Usages
from txmsg.wire.access.permissions import (
    CHECK_GROUP,
    DESCRIBE_TOPIC,
    RECEIVE_GROUP,
    SEND_GROUP,
    SEND_TOPIC,
    allows,
    denied,
)
from txmsg.wire.access.principal import Principal
from txmsg.wire.access.rules import Action, ResourceKind, Right

_REFUSING_MAX: Final = 100
"""Maximum delayed refusals; further ones are answered at once, without the reason."""
_DELAY_S_MAX: Final = 2.0
"""Maximum seconds of a refusal's delay: clients wait for 3 s by default, and must learn that it is the access key."""
_WAIT_S_MAX: Final = 0.5
"""Maximum seconds of waiting for a rate: clients retry after a refusal, later each time, and give up after 3 s by
default."""
_UNLIMITED: Final = frozenset(
    {
        "AckMessage",
        "ChangeInvisibleDuration",
        "EndTransaction",
        "ForwardMessageToDeadLetterQueue",
        "Heartbeat",
        "NotifyClientTermination",
    }
)
"""Methods without a rate: limiting them would redeliver messages that a client has, and check transactions
needlessly."""
_AGAIN_AT_ONCE: Final = frozenset({"ReceiveMessage", "Telemetry"})
"""Methods whose refusals are delayed: push consumers retry after 20 ms, and further frames of a stream are here
already."""
_RECEIVE_TOPIC: Final = Right(Action.RECEIVE, ResourceKind.TOPIC)

Needs = Iterable[tuple[Right, str]]


def _nothing(_: Any) -> Needs:
    """Need no right: the client id is the user's own, and so is all that is known by it."""
    return ()


def _describes(request: pb.QueryRouteRequest) -> Needs:
    yield DESCRIBE_TOPIC, request.topic.name


def _sends(request: pb.SendMessageRequest) -> Needs:
    for message in request.messages:
        yield SEND_TOPIC, message.topic.name
        if message.system_properties.message_type == pb.TRANSACTION:
            yield SEND_GROUP, message.topic.name
            yield CHECK_GROUP, message.topic.name  # a client that is not asked would leave it undecided, unawares


def _ends(request: pb.EndTransactionRequest) -> Needs:
    yield SEND_GROUP, request.topic.name


def _recalls(request: pb.RecallMessageRequest) -> Needs:
    yield SEND_TOPIC, request.topic.name


def _receives(request: Any) -> Needs:
    yield _RECEIVE_TOPIC, request.topic.name
    yield RECEIVE_GROUP, request.group.name


def _receives_of_queue(request: pb.ReceiveMessageRequest) -> Needs:
    yield _RECEIVE_TOPIC, request.message_queue.topic.name
    yield RECEIVE_GROUP, request.group.name


def _settles(frame: pb.TelemetryCommand) -> Needs:
    """Need a right on the group whose settings a consumer gets."""
    if frame.settings.subscription.HasField("group"):
        yield RECEIVE_GROUP, frame.settings.subscription.group.name


NEEDS: Final[dict[str, Callable[[Any], Needs]]] = {
    "QueryRoute": _describes,
    "QueryAssignment": _receives,
    "Heartbeat": _nothing,
    "NotifyClientTermination": _nothing,
    "Telemetry": _settles,
    "SendMessage": _sends,
    "EndTransaction": _ends,
    "RecallMessage": _recalls,
    "ReceiveMessage": _receives_of_queue,
    "AckMessage": _receives,
    "ForwardMessageToDeadLetterQueue": _receives,
    "ChangeInvisibleDuration": _receives,
}
"""The rights that each method needs. The producer group of a transaction is its topic."""


@dataclass(eq=False, slots=True)
class _LongCall:
    """A call that may wait for a long time."""

    method: str
    request: Any
    """The request; None for a stream, which needs nothing but its access key to stay."""
    caller: GatewayCaller
    scope: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    refusal: Unauthenticated | PermissionDenied | None = None


class GuardedCallAdmission(CallAdmission):
    """An admission by users and rules. guard: kept in sync with the brokers' ones. window_s: see WINDOW_S."""

    def __init__(
        self,
        guard: Guard,
        file: KeyFile,
        *,
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._guard = guard
        self._file = file
        self._window_s = window_s
        self._clock = clock
        self._secrets: dict[AccessKey, bytes | None] = {}
        self._failures = Failures()
        self._refusing = 0
        self._stays: set[_LongCall] = set()
        self._changed: Callable[[], None] = lambda: None
        self._usages = Usages(guard.limits_of, wait_s_max=_WAIT_S_MAX)
        guard.on_change = self._apply_users
        guard.on_denied = DeniedCalls().add

    async def enter(self, call: GrpcCall) -> GatewayCaller:
        headers, peer = call.headers, call.peer
        client_id, signature = client_id_of(headers), read_signature(headers)
        try:
            principal = self._guard.authenticate_key(
                "" if signature is None else signature.key_id, lambda key: self._objection(signature, key), peer
            )
        except Unauthenticated:
            await self._delay(peer, signature)
            raise
        # Names have no blanks: no two users get the same id.
        return GatewayCaller(f"{client_id} {principal.name}", principal, host_of(peer))

    def closed(self) -> str:
        return "" if self._guard.is_fresh else "users are not known, so nobody is let in: no broker has told of them"

    @asynccontextmanager
    async def staying(self, method: str, request: Any, caller: GatewayCaller) -> AsyncIterator[None]:
        stay = _LongCall(method, request, caller)
        self._stays.add(stay)
        try:
            async with stay.scope:
                yield
        except TimeoutError:
            if stay.refusal is None:
                raise
            raise stay.refusal from None
        finally:
            self._stays.discard(stay)

    def check(self, method: str, request: Any, caller: GatewayCaller) -> None:
        principal = self._guard.renewed(caller.principal)
        if (refusal := _refusal(principal, method, request)) is not None:
            self._guard.on_denied(principal.name, caller.host, refusal.what)
            raise refusal

    async def pace(self, method: str, request: Any, caller: GatewayCaller) -> None:
        usage = self._usages.of(caller.principal.name)
        if not usage.is_limited or method in _UNLIMITED:
            return
        try:
            await usage.request()
        except Overloaded:
            if method in _AGAIN_AT_ONCE:
                await asyncio.sleep(_WAIT_S_MAX)
            raise
        if method == "SendMessage":
            await usage.messages(len(request.messages))
        self.check(method, request, caller)  # a rule that was taken away while it waited counts

    def watch(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def may_be_asked(self, topic: str, caller: GatewayCaller) -> bool:
        return self._may(caller, (CHECK_GROUP, topic))

    def may_receive(self, group: str, topic: str, caller: GatewayCaller) -> bool:
        return self._may(caller, (_RECEIVE_TOPIC, topic), (RECEIVE_GROUP, group))

    def _may(self, caller: GatewayCaller, *needs: tuple[Right, str]) -> bool:
        try:
            rights = self._guard.renewed(caller.principal).rights
        except Unauthenticated:
            return False
        return all(allows(rights, right, name) for right, name in needs)

    def _apply_users(self) -> None:
        """End waiting calls that are no longer allowed after a change of users or rules."""
        self._usages.apply_limits(self._guard.snapshot.users)
        known = set(self._guard.snapshot.access_keys.values())
        self._secrets = {key: secret for key, secret in self._secrets.items() if key in known}
        for stay in self._stays:
            if stay.refusal is not None:
                continue
            try:
                principal = self._guard.renewed(stay.caller.principal)
                stay.refusal = _refusal(principal, stay.method, stay.request)
            except Unauthenticated as exc:
                stay.refusal = exc
            if stay.refusal is not None:
                stay.scope.reschedule(asyncio.get_running_loop().time())
        self._changed()

    def _objection(self, signature: Signature | None, key: AccessKey) -> str:
        if signature is None:
            return "the call is not signed"
        secret = self._secret(key)
        # Also without a secret, so that the time of the answer does not show which keys this gateway can read.
        is_right = signature.is_by(secret or b"")
        if secret is None:
            return "its secret was encrypted by a key that is not in --access-key-file"
        if not is_right:
            return "the signature was made with another secret"
        made_at = signature.made_at()
        if made_at is None or abs(made_at - self._clock()) > self._window_s:
            return f"it was signed at {signature.date[:40]!r}, which is more than {self._window_s:g} s from now"
        return ""

    def _secret(self, key: AccessKey) -> bytes | None:
        if key not in self._secrets:
            self._secrets[key] = self._file.open(key)
        return self._secrets[key]

    async def _delay(self, peer: str, signature: Signature | None) -> None:
        # By address and by access key: guesses from many addresses at one key are delayed as well.
        keys = [host_of(peer), *([] if signature is None else [signature.key_id[:64]])]
        delay_s = self._failures.delay_s(asyncio.get_running_loop().time(), *keys)
        if not delay_s:
            return
        # Each delayed refusal holds a call; strangers must not take all places by wrong signatures.
        if self._refusing >= _REFUSING_MAX:
            raise BrokerUnavailable("too many logins are refused at this moment: try again later")
        self._refusing += 1
        try:
            await asyncio.sleep(min(delay_s, _DELAY_S_MAX))
        finally:
            self._refusing -= 1


def _refusal(principal: Principal, method: str, request: Any) -> PermissionDenied | None:
    for right, name in () if request is None else NEEDS[method](request):
        if not allows(principal.rights, right, name):
            return denied(principal.name, right, name)
    return None
