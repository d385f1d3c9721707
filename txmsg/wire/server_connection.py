"""A client's connection at the server: beginning and ending calls, its principal, and its share of the server."""

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
"""Bytes of small replies that wait for a client which does not read: above, its requests wait, too."""
_REFUSING_MAX = 100
"""Refused logins whose answer is delayed; further ones are answered at once, without the reason."""


class ServerConnection(WireConnection):
    """A client's connection, at the server."""

    def __init__(self, shared: Shared[ServerConnection], handlers: Handlers, tls: ServerTls | None = None) -> None:
        super().__init__(shared.traffic, tls=None if tls is None else TlsStream(tls.context))
        self._shared = shared
        self._handlers = handlers
        self.principal = ANYONE if shared.guard is None else NOBODY
        """The authenticated user; `NOBODY` before it has authenticated, and after it was refused."""
        self.usage: Usage | None = None
        """Use of the server by its user, over all the user's connections; None without authentication."""
        self._is_counted = False
        """True while it is counted among the connections of its user."""
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
        """Its place in the server's table; None before it is made, and if the table had no room."""
        self.ended: asyncio.Future[None] = self.loop.create_future()
        """Done when the connection has ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enter the server's table, or refuse the connection; called by asyncio."""
        super().connection_made(transport)
        shared = self._shared
        shared.connections.add(self)
        # asyncio may have accepted it before the listeners were removed; the protocol is only made now.
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
        # The secret is not needed again, and must not show in a dump or an error of this process.
        self.peer.ClearField("token")

    def _refuse_slowly(self, error: Unauthenticated) -> None:
        """Refuse a login. The answer is delayed longer with each refusal of this address or token: it may be
        guessing."""
        assert self.peer is not None
        shared = self._shared
        token = read_token(self.peer.token)
        keys = [host_of(self.peer_name), *([] if token is None else [token.id])]
        delay_s = shared.failures.delay_s(self.loop.time(), *keys)
        if not delay_s:
            self._let_out(error)
        # Delayed answers hold connections. Beyond the bound the answer comes at once, but does not say that the login
        # was wrong: a guesser learns nothing from it, and a legitimate client tries again.
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
        """End the connection if its credential is no longer valid; otherwise update the principal's roles and
        rights."""
        if (guard := self._shared.guard) is not None and self.principal is not NOBODY:
            try:
                self.principal = guard.renewed(self.principal)
            except Unauthenticated:
                # Not this error: the client may have another token by now, and learns it when it connects again.
                self._let_out(BrokerUnavailable("the credential of this connection is not valid any more"))

    def look_at_calls(self) -> None:
        """Refuse the calls in progress that wait or stream, and for which the principal has lost the right."""
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
        """Send the reason why the connection is refused, and wait a while for the client to close it."""
        self.principal = NOBODY
        self._leave()
        if self._place is not None:
            self._shared.table.forget_place(self._place)
        self._refused_at = self.loop.time()
        # GOAWAY, then the end of our direction, then the client closes: closing here at once would reset the connection
        # if the client's request is on its way, and the reason would be lost.
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
        """True if the client reads also while no call of it waits."""
        return self.peer is not None and not self.peer.blocking

    @property
    def caller(self) -> Caller:
        """The caller of its calls, for the audit log."""
        return Caller(self.principal.name, self.peer_name)

    @property
    def calls_in_flight(self) -> int:
        """Number of calls begun and not answered."""
        return len(self._calls)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks of the calls in progress."""
        return [running.task for running in self._calls.values() if running.task is not None]

    def cancel_calls(self) -> None:
        """Cancel the calls in progress."""
        for running in self._calls.values():
            running.cancel()

    def go_away(self, error: TxmsgError) -> None:
        """Begin no more calls. The client is told the last one begun, so it knows that later ones were not."""
        self._is_going = True
        self.send_frames(WireFrameKind.GOAWAY, 0, self._last_call, bytes_of_error(error))

    def end_if_slow(self, now: float) -> None:
        """End the connection, or calls of it, that take too long."""
        limits = self._shared.limits
        if self.is_full:
            self.look_full(now)
        if self._place is not None and self._place.is_stranger and self.heard_at > self._connected_at:
            self._shared.table.spoken(self._place)
        if self._refused_at and now - self._refused_at > limits.greeting_s:
            self.abort("it was refused, and does not close")
        elif self.is_full and now - self.full_since > limits.unread_s:
            self.abort("it reads nothing")
        # While reading is paused the client's bytes lie in the kernel, so neither its silence nor its slowness is its
        # fault.
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
        # The caller has given up by then. Its deadline ends work that no caller waits for; nothing is sent for it.
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
        """Refuse a request that has arrived in part: others need its room."""
        self.refuse(partial)
        error = Overloaded(
            "too many large requests are on their way, and this one came more slowly than others: nothing was done; "
            "try again"
        )
        self._refuse_call(partial.call, error)

    def _refuse_call(self, call: int, error: TxmsgError) -> None:
        """End a call of which a message is refused, also if the call is in progress."""
        if (running := self._calls.get(call)) is not None:
            running.cancel()
        self.send_frames(WireFrameKind.ERROR, 0, call, bytes_of_error(error))

    def count_held_bytes(self, size_bytes: int) -> None:
        """Count bytes of requests in progress; negative when they are done."""
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
        # Set before anything is refused below: an ERROR is an answer, so the client knows these calls' fate without
        # GOAWAY.
        self._last_call = max(self._last_call, call)  # a small call passes a large one
        found = self._handlers.find_method(head.method)
        if found is None:
            error: TxmsgError = ProtocolError(
                f"the method {head.method[:100]} is not known here: this server is of an older release than the "
                "client, or of another kind; upgrade servers before clients"
            )
            self._fail(call, error)
            return
        # An error for this call only: its client has many calls in progress, which must not fail with it.
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
        # A task per call: handlers of one connection must not wait for each other, and CANCEL needs something to
        # cancel. A future instead was tried, and saved 2 of 55 us of a lone call (0053).
        running.task = self.loop.create_task(self._answer(call, method, handler, arguments, running))
        running.task.add_done_callback(lambda _: self._forget_call(call, running))

    def _why_not(self, method: Method[Any, Any], request: Any, size_bytes: int) -> TxmsgError | None:
        """Return the reason why this user may not make this call now, or None."""
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
                # The wait for a rate happens inside the task, so its call counts against `calls` meanwhile and can be
                # cancelled.
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
