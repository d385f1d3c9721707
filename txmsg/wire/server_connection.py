"""A client's connection as the server has it: calls that begin and end, its principal, and what it may take."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

from txmsg.errors import (
    BrokerUnavailable,
    MessageTooLarge,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    TxmsgError,
    Unauthenticated,
)
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.guard import host_of
from txmsg.wire.access.limits import Usage
from txmsg.wire.access.principal import ANYONE, NOBODY
from txmsg.wire.access.tokens import read_token
from txmsg.wire.caller import Caller, answering
from txmsg.wire.connection import Partial, WireConnection
from txmsg.wire.data import split
from txmsg.wire.failures import bytes_of_error
from txmsg.wire.frames import LAST, Buffer, WireFrameKind, read_call_head
from txmsg.wire.handlers import Handlers
from txmsg.wire.method import Method, packed
from txmsg.wire.server_call import Handler, RunningCall, ServerCall, ignore, read_request
from txmsg.wire.shared import Shared
from txmsg.wire.table import ConnectionPlace, full_text
from txmsg.wire.tls import ServerTls, TlsStream

_log = EventLog(__name__)

STOPPING: Final = "this server is stopping: ask another one"
_BACKLOG_BYTES_MAX = 4 * 1024 * 1024
"""Small replies that wait for a client which does not read: above it, its requests wait, too."""
_REFUSING_MAX = 100
"""Refused logins whose answer waits; more are told at once, and not why."""


class ServerConnection(WireConnection):
    """A client's connection, as the server has it."""

    def __init__(self, shared: Shared[ServerConnection], handlers: Handlers, tls: ServerTls | None = None) -> None:
        super().__init__(shared.traffic, tls=None if tls is None else TlsStream(tls.context))
        self._shared = shared
        self._handlers = handlers
        self.principal = ANYONE if shared.guard is None else NOBODY
        """Who it is; NOBODY before it has authenticated, and after it was refused."""
        self.usage: Usage | None = None
        """What its user takes of the server, with other connections; None without authentication."""
        self._is_counted = False
        """Among the connections of its user."""
        self._refused_at = 0.0
        self._refusal: asyncio.TimerHandle | None = None
        self.waiting_bytes_max = shared.limits.held_bytes
        self.backlog_bytes_max = _BACKLOG_BYTES_MAX
        self.arrival_s = shared.limits.arrival_s
        self.arrival_bytes_per_s = shared.limits.arrival_bytes_per_s
        self._calls: dict[int, RunningCall] = {}
        self._held_bytes = 0
        self._last_call = 0
        self._is_going = False
        self._pinged_at = 0.0
        self._connected_at = self.loop.time()
        self._place: ConnectionPlace | None = None
        """In the server's table; None before it is made, and if there is none for it."""
        self.ended: asyncio.Future[None] = self.loop.create_future()
        """Done when the connection is at its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio has it."""
        super().connection_made(transport)
        shared = self._shared
        shared.connections.add(self)
        if shared.is_stopping:
            self.go_away(BrokerUnavailable(STOPPING))
            self.close()
            return
        self._place = shared.table.enter(host_of(self.peer_name), self.abort)
        if self._place is None:
            self.go_away(Overloaded(full_text(shared.connections_max)))
            self.close()

    def greeted(self) -> None:
        if (guard := self._shared.guard) is None:
            if self._place is not None:
                self._shared.table.know(self._place)
            return
        assert self.peer is not None
        certificate = "" if self._tls is None else self._tls.certificate_name()
        try:
            self.principal = guard.authenticate(self.peer.token, certificate, self.peer_name)
            self.usage = self._shared.usages.enter(self.principal.name)
            self._is_counted = True
            if self._place is not None:
                self._shared.table.know(self._place, self.principal.name, is_admin=self.principal.is_admin)
        except Unauthenticated as exc:
            self._refuse_slowly(exc)
        except BrokerUnavailable as exc:
            self._let_out(exc)
        self.peer.ClearField("token")

    def _refuse_slowly(self, error: Unauthenticated) -> None:
        """Answers the later the more logins of this address, or with this token, were refused: it may be guessing."""
        assert self.peer is not None
        shared = self._shared
        token = read_token(self.peer.token)
        keys = [host_of(self.peer_name), *([] if token is None else [token.id])]
        delay_s = shared.failures.delay_s(self.loop.time(), *keys)
        if not delay_s:
            self._let_out(error)
        elif shared.refusing >= _REFUSING_MAX:
            self._let_out(BrokerUnavailable("too many logins are refused at this moment: try again later"))
        else:
            shared.refusing += 1
            self._refusal = self.loop.call_later(delay_s, self._refuse, error)

    def _refuse(self, error: Unauthenticated) -> None:
        self._forget_refusal()
        self._let_out(error)

    def _forget_refusal(self) -> None:
        if self._refusal is not None:
            self._refusal.cancel()
            self._refusal = None
            self._shared.refusing -= 1

    def look_at_credential(self) -> None:
        """Ends the connection if its credential is not valid any more; else the principal has the roles of now."""
        if (guard := self._shared.guard) is not None and self.principal is not NOBODY:
            try:
                self.principal = guard.renewed(self.principal)
            except Unauthenticated:
                # Not this error: the client may have another token by now, and learns it when it connects again.
                self._let_out(BrokerUnavailable("the credential of this connection is not valid any more"))

    def look_at_calls(self) -> None:
        """Refuses the calls under way that wait or stream, and that their principal may not make any more."""
        guard = self._shared.guard
        for call, running in list(self._calls.items()):
            if guard is not None and running.call is not None and running.task is not None:
                refused = guard.refusal(self.principal, running.call.method.name, running.request)
                if refused is not None:
                    told = PermissionDenied(
                        f"{refused}; the call was under way: what came with it, such as acknowledgements, may be done"
                    )
                    self._refuse_call(call, told)

    def _let_out(self, error: TxmsgError) -> None:
        """Tells why nothing more is done for this connection, and waits a while for the client to close it."""
        self.principal = NOBODY
        self._leave()
        if self._place is not None:
            self._shared.table.forget_place(self._place)
        self._refused_at = self.loop.time()
        self.go_away(error)
        self.cancel_calls()
        self.finish()

    def _leave(self) -> None:
        if self.usage is not None and self._is_counted:
            self._is_counted = False
            self.usage.connections -= 1

    def lost(self, reason: str) -> None:
        self._shared.connections.discard(self)
        if self._place is not None:
            self._shared.table.leave(self._place)
        self._leave()
        self._forget_refusal()
        self.cancel_calls()
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def reads_now(self) -> bool:
        """Whether the client reads also while it waits for nothing."""
        return self.peer is not None and not self.peer.blocking

    @property
    def caller(self) -> Caller:
        """Who it is, for the audit log."""
        return Caller(self.principal.name, self.peer_name)

    @property
    def calls_in_flight(self) -> int:
        """Calls begun and not answered."""
        return len(self._calls)

    def tasks(self) -> list[asyncio.Task[None]]:
        """The calls under way."""
        return [running.task for running in self._calls.values() if running.task is not None]

    def cancel_calls(self) -> None:
        """Ends the calls under way."""
        for running in self._calls.values():
            running.cancel()

    def go_away(self, error: TxmsgError) -> None:
        """Begins no more calls. The client is told which was the last one, so that it knows what was not begun."""
        self._is_going = True
        self.send_frames(WireFrameKind.GOAWAY, 0, self._last_call, bytes_of_error(error))

    def end_if_slow(self, now: float) -> None:
        """Ends what takes too long."""
        limits = self._shared.limits
        if self.is_full:
            self.look_full(now)
        if self._place is not None and self._place.is_stranger and self.heard_at > self._connected_at:
            self._shared.table.spoken(self._place)
        if self._refused_at and now - self._refused_at > limits.greeting_s:
            self.abort("it was refused, and does not close")
        elif self.is_full and now - self.full_since > limits.unread_s:
            self.abort("it reads nothing")
        elif self.is_paused:
            self.put_off(limits.look_s)
            if not self.is_full:
                self.send_frames(WireFrameKind.PING, 0, 0)  # for the client, whose pings are not read now
        elif self.is_overdue(now):
            self.abort("a request came too slowly")
        elif now - self.heard_at > limits.silence_s and self.reads_now:
            if self._pinged_at <= self.heard_at:
                self._pinged_at = now
                self.send_frames(WireFrameKind.PING, 0, 0)
            elif now - self._pinged_at > limits.silence_s:
                self.abort("it answers no ping")
        for running in [each for each in self._calls.values() if each.deadline < now]:
            running.cancel()
        if self.principal.expires_at < math.inf:
            self.look_at_credential()

    # ---- what comes

    def take_message(self, kind: int, flags: int, call: int, message: Buffer) -> None:
        if kind == WireFrameKind.CALL:
            if self.principal is not NOBODY:  # which is told soon, or was, and knows then that no call was begun
                self._begin_call(flags, call, message)
        elif kind == WireFrameKind.PUSH:
            running = self._calls.get(call)
            if running is not None and running.call is not None:
                running.call.put_request(message, is_last=bool(flags & LAST))
        elif kind == WireFrameKind.CANCEL:
            self.drop(call)
            if (running := self._calls.get(call)) is not None:
                running.cancel()
        elif kind != WireFrameKind.GOAWAY:
            raise ProtocolError(f"a client sends no frames of kind {kind}")

    def allowed_bytes(self, kind: int, call: int, first: bytes) -> int:
        if self.principal is NOBODY or (kind == WireFrameKind.PUSH and call not in self._calls):
            return 0
        return self._handlers.request_size_bytes_max(read_call_head(first).method if kind == WireFrameKind.CALL else "")

    def too_large(self, kind: int, call: int, allowed_bytes: int) -> None:
        error = MessageTooLarge(
            f"a request is larger than {allowed_bytes} bytes, as much as one may have: send several"
        )
        self._refuse_call(call, error)

    def arriving(self, size_bytes: int) -> None:
        shared = self._shared
        shared.arriving_bytes += size_bytes
        if size_bytes > 0 and shared.arriving_bytes > shared.limits.arriving_bytes:
            shared.make_room()

    def refuse_arriving(self, partial: Partial) -> None:
        """Refuses a request that has not come whole: others need its room."""
        self.refuse(partial)
        error = Overloaded(
            "too many large requests are on their way, and this one came more slowly than others: nothing was done; "
            "try again"
        )
        self._refuse_call(partial.call, error)

    def _refuse_call(self, call: int, error: TxmsgError) -> None:
        """Ends a call of which a message is not taken, also if it is under way."""
        if (running := self._calls.get(call)) is not None:
            running.cancel()
        self.send_frames(WireFrameKind.ERROR, 0, call, bytes_of_error(error))

    def count_held_bytes(self, size_bytes: int) -> None:
        """So many bytes more of requests are under way, or fewer."""
        allowed = self._shared.limits.held_bytes
        before, self._held_bytes = self._held_bytes, self._held_bytes + size_bytes
        if self.usage is not None:
            self.usage.in_flight_bytes += size_bytes
        if (before > allowed) != (self._held_bytes > allowed):
            self.hold_back(self._held_bytes > allowed)

    def _begin_call(self, flags: int, call: int, message: Buffer) -> None:
        if self._is_going:
            if call <= self._last_call:  # of the others, the client knows from GOAWAY that they are not begun
                self._fail(call, BrokerUnavailable(STOPPING))
            return
        head = read_call_head(message)
        if call in self._calls:
            raise ProtocolError(f"call {call} is begun twice")
        self._last_call = max(self._last_call, call)  # a small call passes a large one
        found = self._handlers.find_method(head.method)
        if found is None:
            error: TxmsgError = ProtocolError(
                f"the method {head.method[:100]} is not known here: this server is of an older release than the "
                "client, or of another kind; upgrade servers before clients"
            )
            self._fail(call, error)
            return
        if len(self._calls) >= self._shared.limits.calls:
            error = Overloaded(f"{len(self._calls)} calls are under way in this connection, as many as it takes")
            self._fail(call, error)
            return
        method, handler = found
        try:
            arguments: tuple[Any, ...]
            if method.takes_data:
                body, data = split(memoryview(message)[head.size_bytes :])
                arguments = (read_request(method, body), data)
            else:
                arguments = (read_request(method, message[head.size_bytes :]),)
        except TxmsgError as exc:
            self._fail(call, exc)
            return
        refused = self._why_not(method, arguments[0], len(message))
        if refused is not None:
            self._fail(call, refused)
            return
        self._shared.calls_begun += 1
        deadline = self.loop.time() + head.timeout_ms / 1000 if head.timeout_ms else float("inf")
        running = self._calls[call] = RunningCall(deadline, len(message), arguments[0])
        self.count_held_bytes(running.size_bytes)
        if method.takes_many or method.gives_many or hasattr(handler, "with_call"):
            running.call = ServerCall(self, call, method)
            if method.takes_many:
                running.call.put_first_request(arguments[0], is_last=bool(flags & LAST))
                arguments = ()
            arguments += (running.call,)
        running.task = self.loop.create_task(self._answer(call, method, handler, arguments, running))
        running.task.add_done_callback(lambda _: self._forget_call(call, running))

    def _why_not(self, method: Method[Any, Any], request: Any, size_bytes: int) -> TxmsgError | None:
        """Why this user may not make this call now."""
        if (guard := self._shared.guard) is None:
            return None
        refused = guard.refusal(self.principal, method.name, request)
        if refused is None and self.usage is not None and self.usage.is_limited:
            return self.usage.refusal(size_bytes)
        return refused

    async def _answer(
        self, call: int, method: Method[Any, Any], handler: Handler, arguments: tuple[Any, ...], running: RunningCall
    ) -> None:
        answering.set(self)
        try:
            if self.usage is not None and self.usage.is_limited:
                await self.usage.request()
                guard = self._shared.guard
                assert guard is not None, "users have limits"
                if (refused := guard.refusal(self.principal, method.name, running.request)) is not None:
                    raise refused  # its rule was taken away while it waited
            reply = await handler(*arguments)
            message = b"" if reply is None else packed(reply)
        except TxmsgError as exc:
            self._fail(call, exc)
        except Exception as exc:  # noqa: BLE001 - the root of a task
            _log.exception("server.call_failed", "a call from %(peer)s failed", peer=self.peer_name)
            self._fail(call, TxmsgError(f"the server failed: {type(exc).__name__}; its log says more"))
        else:
            self.send_frames(WireFrameKind.REPLY, 0, call, message)
            await self.drained(call)  # a call whose reply is large is under way until the client is taking it
            if running.call is not None and not self.is_lost:
                running.call.unsent = ignore

    def _fail(self, call: int, error: TxmsgError) -> None:
        self._shared.calls_failed[error.code] += 1
        if isinstance(error, PermissionDenied) and self._shared.guard is not None:
            self._shared.guard.on_denied(self.principal.name, host_of(self.peer_name), error.what)
        self.drop(call)  # what had not left of it
        self.send_frames(WireFrameKind.ERROR, 0, call, bytes_of_error(error))

    def _forget_call(self, call: int, running: RunningCall) -> None:
        del self._calls[call]
        self.count_held_bytes(-running.size_bytes)
        if running.call is not None:
            running.call.forget_requests()
