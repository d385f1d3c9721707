"""A server of the protocol, for brokers and MetaQ: where it listens, what it answers, and its bounds against strangers.

Knows no service: what answers a method is given. Errors of txmsg become ERROR frames; whatever else a method raises is
logged, and told as an error of the server. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import resource
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError

from txmsg.access.failures import Failures
from txmsg.access.guard import Guard
from txmsg.access.limits import Usage, Usages
from txmsg.access.principal import ANYONE, NOBODY
from txmsg.access.tokens import read_token
from txmsg.errors import (
    BrokerUnavailable,
    MessageTooLarge,
    MisuseError,
    Overloaded,
    ProtocolError,
    TxmsgError,
    Unauthenticated,
)
from txmsg.logs import EventLog
from txmsg.wire.address import UNIX, host_and_port, is_loopback
from txmsg.wire.caller import Caller, answering
from txmsg.wire.codec import MESSAGE_SIZE_BYTES_MAX
from txmsg.wire.connection import Connection, Partial, Traffic
from txmsg.wire.data import pieces_of, split
from txmsg.wire.failures import bytes_of_error
from txmsg.wire.frames import LAST, Buffer, Kind, read_call_head
from txmsg.wire.method import Method, ReplyT, RequestT, methods_of
from txmsg.wire.texts import nul_in
from txmsg.wire.tls import ServerTls, TlsStream

_log = EventLog(__name__)

_FILES_RESERVED = 256
"""File descriptors that are not for clients: the database's or the log's, pipes, the listening socket."""
_CLOSE_S_MAX = 1.0
CLOSING_S_MAX = 2 * _CLOSE_S_MAX
"""How much longer than its grace a server takes to stop."""
_BACKLOG_BYTES_MAX = 4 * 1024 * 1024
"""Small replies that wait for a client which does not read: above it, its requests wait, too."""
_BACKLOG = 1024
_REFUSING_MAX = 100
"""Refused logins whose answer waits; more are cut off."""
_PORTS_TRIED = 10
_SAY_AGAIN_S = 60.0
_SAY_OPEN_AGAIN_S = 3600.0

Handler = Callable[..., Awaitable[Any]]
HandlerT = TypeVar("HandlerT", bound=Handler)


def with_call(handler: HandlerT) -> HandlerT:
    """Marks what answers a method with one request and one reply, and is to be given the `ServerCall`, too."""
    handler.with_call = True  # type: ignore[attr-defined]
    return handler


def _ignore() -> None:
    pass


def connections_allowed(connections_max: int) -> int:
    """How many clients may be connected: `connections_max`, or fewer where the process may not open that many files.

    Raises the process's soft limit of open files to what it needs, as far as the hard limit lets it: running out of
    them would also keep the server from its database or its log.
    """
    wanted = connections_max + _FILES_RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            allowed = max(soft - _FILES_RESERVED, soft // 2)
            _log.warning(
                "server.connections_limited",
                "at most %(connections)d clients can be connected, not connections_max=%(connections_max)d: the "
                "process may open %(files)d files; raise its hard limit (ulimit -Hn, or LimitNOFILE= of systemd)",
                connections=allowed,
                connections_max=connections_max,
                files=soft,
            )
            return allowed
    return connections_max


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may take of a server: a stranger's as a friend's."""

    greeting_s: float = 10.0
    """A connection that has not greeted by then is closed."""
    silence_s: float = 10.0
    """A peer that has said nothing for so long is sent a ping; one that does not answer in as long again is cut off."""
    unread_s: float = 30.0
    """So is one that takes nothing of what is sent to it for so long."""
    arrival_s: float = 30.0
    """And one whose request is so far behind this rate:"""
    arrival_bytes_per_s: float = 256 * 1024
    arriving_bytes: int = 256 * 1024 * 1024
    """Of requests that have not come whole, in all connections, or one alone: above it, the slowest is refused."""
    calls: int = 1000
    """Calls under way at once; more are refused."""
    held_bytes: int = 64 * 1024 * 1024
    """Requests under way, and so much of large replies that were not taken: above it, no more requests are read."""
    look_s: float = 1.0
    """How often all of this is looked at."""


class Server:
    """Listens after `bind` and `start`, until `stop`.

    services: what answers the methods of each, by the generated class that lists them: a method of the same name, as
    `async def send(request) -> reply`; or, where messages are many, with a `ServerCall`: `attach(call)`,
    `fetch(request, call)`; or, where a request has data, with that: `append(request, data) -> reply`. One that is
    marked by `with_call` gets a `ServerCall`, too.
    larger_requests: the size of those that may be larger than `request_size_bytes_max`, by the method's name.
    tls: for connections over TCP; None is without TLS. guard: who may connect, and call what; None is everybody.
    """

    def __init__(
        self,
        services: Mapping[type, object],
        *,
        connections_max: int,
        request_size_bytes_max: int = MESSAGE_SIZE_BYTES_MAX,
        larger_requests: Mapping[str, int] = {},
        limits: Limits = Limits(),
        tls: ServerTls | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.limits = limits
        self.tls = tls
        self.guard = guard
        self.failures = Failures()
        self.refusing = 0
        """Connections whose refusal waits."""
        if guard is not None:
            guard.on_change = self._look_at_credentials
            self.usages = Usages(guard.limits_of)
        self._address = ""
        self._is_open = False
        """Whether other machines reach it, and clients need neither a certificate nor, over TLS, a token."""
        self._say_open_at = 0.0
        self.connections_max = connections_max
        self.arriving_bytes = 0
        """Of requests that have not come whole, in all connections."""
        self._request_size_bytes_max = request_size_bytes_max
        self._larger_requests = larger_requests
        self.handlers: dict[str, tuple[Method[Any, Any], Handler]] = {
            method.name: (method, getattr(answering, name))
            for service, answering in services.items()
            for name, method in methods_of(service).items()
        }
        self.connections: set[ServerConnection] = set()
        self.traffic = Traffic()
        self.calls_begun = 0
        self.calls_failed: Counter[str] = Counter()
        """Calls answered with an error, by its code."""
        self.is_stopping = False
        self._listeners: list[asyncio.Server] = []
        self._out_of_files_at: float | None = None
        self._looking: asyncio.TimerHandle | None = None

    async def bind(self, listen: str) -> str:
        """Takes HOST:PORT, or unix:PATH. Returns it with the port that was taken for 0. Raises MisuseError."""
        loop = asyncio.get_running_loop()
        if listen.startswith(UNIX):
            path = listen.removeprefix(UNIX)
            try:
                self._listeners.append(
                    await loop.create_unix_server(
                        lambda: ServerConnection(self), path, backlog=_BACKLOG, start_serving=False
                    )
                )
            except OSError as exc:
                directory = Path(path).parent
                raise MisuseError(
                    f"cannot listen on {listen} ({exc}): is {directory} a directory that may be written to?"
                ) from exc
            return listen
        host, _, port = listen.rpartition(":")
        self._is_open = not is_loopback(host_and_port(listen)[0]) and (
            self.tls is None or not (self.tls.asks_clients or self.guard is not None)
        )
        try:
            for sock in _bound(*host_and_port(listen)):
                self._listeners.append(
                    await loop.create_server(
                        lambda: ServerConnection(self, self.tls), sock=sock, backlog=_BACKLOG, start_serving=False
                    )
                )
        except (OSError, UnicodeError) as exc:
            raise MisuseError(
                f"cannot listen on {listen}: another program, perhaps another server, uses port {port}, or {host} is "
                "not an address of this machine: look with `ss -ltnp`, or give another --listen HOST:PORT (port 0: a "
                "free one)"
            ) from exc
        self._address = f"{host}:{self._listeners[0].sockets[0].getsockname()[1]}"
        return self._address

    async def start(self) -> None:
        """Takes connections from now on."""
        assert self._listeners, "bind comes first"
        for listener in self._listeners:
            await listener.start_serving()
        self._look()

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls; those under way have `grace_s`, then they are cancelled. Closes all connections."""
        self.is_stopping = True
        for listener in self._listeners:
            listener.close()
        if self._looking is not None:
            self._looking.cancel()
        connections = list(self.connections)
        for connection in connections:
            connection.go_away(BrokerUnavailable("this server is stopping: ask another one"))
        for patience_s in (grace_s, _CLOSE_S_MAX):
            tasks = [task for connection in connections for task in connection.tasks()]
            if tasks:
                await asyncio.wait(tasks, timeout=patience_s)
            for connection in connections:
                connection.cancel_calls()
        for connection in connections:
            connection.finish()
        closing = [connection.ended for connection in connections if not connection.is_lost and connection.reads_now]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_S_MAX)
        for connection in connections:
            connection.abort("the server has stopped")

    def request_size_bytes_max(self, method: str) -> int:
        """How large a request of this method may be."""
        return self._larger_requests.get(method, self._request_size_bytes_max)

    def make_room(self) -> None:
        """Refuses the slowest of the requests that have not come whole, unless there is only one."""
        arriving = [
            (partial.due_at, connection, partial)
            for connection in self.connections
            for partial in connection.partial.values()
            if partial.kept
        ]
        if len(arriving) > 1:
            _, connection, partial = min(arriving, key=lambda each: each[0])
            connection.refuse_arriving(partial)

    def _look_at_credentials(self) -> None:
        """Users, rules or limits have changed: who has lost its credential is cut off, and calls that wait end."""
        assert self.guard is not None
        self.usages.look(self.guard.snapshot.users)
        for connection in list(self.connections):
            connection.look_at_credential()
            connection.look_at_calls()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(self.limits.look_s, self._look)
        now = loop.time()
        for connection in list(self.connections):
            connection.look(now)
        if self.tls is not None:
            self.tls.renew()
        if self._is_open and now >= self._say_open_at:
            self._say_open_at = now + _SAY_OPEN_AGAIN_S
            _log.warning(
                "server.insecure",
                "strangers who reach %(address)s may read and change everything: it listens beyond this machine, and "
                "not both TLS and a certificate or token are needed (--insecure)",
                address=self._address,
            )
        self._look_at_files(now)

    def _look_at_files(self, now: float) -> None:
        """Says that no file can be opened. uvloop closes connections then, and says nothing."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as exc:
            is_due = self._out_of_files_at is None or now - self._out_of_files_at >= _SAY_AGAIN_S
            if exc.errno in (errno.EMFILE, errno.ENFILE) and is_due:
                self._out_of_files_at = now
                _log.error(
                    "server.out_of_files",
                    "no connection can be taken: this process cannot open another file (%(error)s); raise its limit "
                    "(ulimit -n, or LimitNOFILE= of systemd), or allow fewer connections "
                    "(connections_max=%(connections_max)d, %(connections)d are open)",
                    error=exc.strerror,
                    connections_max=self.connections_max,
                    connections=len(self.connections),
                )


def _bound(host: str, port: int) -> list[socket.socket]:
    """A socket at each address of this name that this machine has; at the same port, also where 0 is asked for."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    ends = list(dict.fromkeys((family, end) for family, _, _, _, end in found))
    for tries_left in reversed(range(_PORTS_TRIED)):
        try:
            return _bound_at(ends)
        except OSError as exc:
            if port or not tries_left or exc.errno != errno.EADDRINUSE:
                raise  # else the port that is free at one address is not at another
    raise AssertionError("the last attempt returns or raises")


def _bound_at(ends: Sequence[tuple[int, Any]]) -> list[socket.socket]:
    bound: list[socket.socket] = []
    absent: OSError | None = None
    with ExitStack() as opened:
        for family, (host, port, *rest) in ends:
            end = (host, bound[0].getsockname()[1] if bound else port, *rest)
            try:
                bound.append(_listener(family, end, is_alone=len(ends) == 1))
            except OSError as exc:
                if exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = exc  # as ::1 is where IPv6 is switched off
            else:
                opened.callback(bound[-1].close)
        if not bound:
            raise absent or OSError("the name has no address")
        opened.pop_all()
    return bound


def _listener(family: int, end: Any, *, is_alone: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not is_alone:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        sock.bind(end)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


@dataclass(slots=True, eq=False)
class _Running:
    """A call under way. call: where messages are many. request: the first one."""

    deadline: float
    size_bytes: int
    request: object
    task: asyncio.Task[None] | None = None
    call: ServerCall[Any, Any] | None = None

    def cancel(self) -> None:
        """Once only: what it does to end must not be cancelled, too."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()


class ServerConnection(Connection):
    """A client's connection, as the server has it."""

    def __init__(self, server: Server, tls: ServerTls | None = None) -> None:
        super().__init__(server.traffic, tls=None if tls is None else TlsStream(tls.context))
        self._server = server
        self.principal = ANYONE if server.guard is None else NOBODY
        """Who it is; NOBODY before it has authenticated, and after it was refused."""
        self.usage: Usage | None = None
        """What its user takes of the server, with other connections; None without authentication."""
        self._is_counted = False
        """Among the connections of its user."""
        self._refused_at = 0.0
        self._refusal: asyncio.TimerHandle | None = None
        self.waiting_bytes_max = server.limits.held_bytes
        self.backlog_bytes_max = _BACKLOG_BYTES_MAX
        self.arrival_s = server.limits.arrival_s
        self.arrival_bytes_per_s = server.limits.arrival_bytes_per_s
        self._calls: dict[int, _Running] = {}
        self._held_bytes = 0
        self._last_call = 0
        self._is_going = False
        self._pinged_at = 0.0
        self._connected_at = self.loop.time()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        """Done when the connection is at its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio has it."""
        super().connection_made(transport)
        server = self._server
        server.connections.add(self)
        if len(server.connections) > server.connections_max or server.is_stopping:
            self.go_away(
                Overloaded(
                    f"this server has {server.connections_max} connections, as many as it takes (connections_max): "
                    "try again later, or ask another one"
                )
            )
            self.close()

    def greeted(self) -> None:
        if (guard := self._server.guard) is None:
            return
        assert self.peer is not None
        certificate = "" if self._tls is None else self._tls.certificate_name()
        try:
            self.principal = guard.authenticate(self.peer.token, certificate, self.peer_name)
            self.usage = self._server.usages.enter(self.principal.name)
            self._is_counted = True
        except Unauthenticated as exc:
            self._refuse_slowly(exc)
        except BrokerUnavailable as exc:
            self._let_out(exc)
        self.peer.ClearField("token")

    def _refuse_slowly(self, error: Unauthenticated) -> None:
        """Answers the later the more logins of this address, or with this token, were refused: it may be guessing."""
        assert self.peer is not None
        server = self._server
        token = read_token(self.peer.token)
        host = self.peer_name.rpartition(":")[0]
        delay_s = server.failures.delay_s(self.loop.time(), host, *([] if token is None else [token.id]))
        if not delay_s:
            self._let_out(error)
        elif server.refusing >= _REFUSING_MAX:
            self._let_out(BrokerUnavailable("too many logins are refused at this moment: try again later"))
        else:
            server.refusing += 1
            self._refusal = self.loop.call_later(delay_s, self._refuse, error)

    def _refuse(self, error: Unauthenticated) -> None:
        self._forget_refusal()
        self._let_out(error)

    def _forget_refusal(self) -> None:
        if self._refusal is not None:
            self._refusal.cancel()
            self._refusal = None
            self._server.refusing -= 1

    def look_at_credential(self) -> None:
        """Ends the connection if its credential is not valid any more; else the principal has the roles of now."""
        if (guard := self._server.guard) is not None and self.principal is not NOBODY:
            try:
                self.principal = guard.renewed(self.principal)
            except Unauthenticated:
                # Not this error: the client may have another token by now, and learns it when it connects again.
                self._let_out(BrokerUnavailable("the credential of this connection is not valid any more"))

    def look_at_calls(self) -> None:
        """Refuses the calls under way that wait or stream, and that their principal may not make any more."""
        guard = self._server.guard
        for call, running in list(self._calls.items()):
            if guard is not None and running.call is not None and running.task is not None:
                refused = guard.refusal(self.principal, running.call.method.name, running.request)
                if refused is not None:
                    self._refuse_call(call, refused)

    def _let_out(self, error: TxmsgError) -> None:
        """Tells why nothing more is done for this connection, and waits a while for the client to close it."""
        self.principal = NOBODY
        self._leave()
        self._refused_at = self.loop.time()
        self.go_away(error)
        self.cancel_calls()
        self.finish()

    def _leave(self) -> None:
        if self.usage is not None and self._is_counted:
            self._is_counted = False
            self.usage.connections -= 1

    def lost(self, reason: str) -> None:
        self._server.connections.discard(self)
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
        self.send(Kind.GOAWAY, 0, self._last_call, bytes_of_error(error))

    def look(self, now: float) -> None:
        """Ends what takes too long."""
        limits = self._server.limits
        if self.is_full:
            self.look_full(now)
        if self.peer is None and now - self._connected_at > limits.greeting_s:
            self.abort("it did not greet")
        elif self._refused_at and now - self._refused_at > limits.greeting_s:
            self.abort("it was refused, and does not close")
        elif self.is_full and now - self.full_since > limits.unread_s:
            self.abort("it reads nothing")
        elif self.is_paused:
            self.put_off(limits.look_s)
            if not self.is_full:
                self.send(Kind.PING, 0, 0)  # for the client, whose pings are not read now
        elif self.is_overdue(now):
            self.abort("a request came too slowly")
        elif now - self.heard_at > limits.silence_s and self.reads_now:
            if self._pinged_at < self.heard_at:
                self._pinged_at = now
                self.send(Kind.PING, 0, 0)
            elif now - self._pinged_at > limits.silence_s:
                self.abort("it answers no ping")
        for running in [each for each in self._calls.values() if each.deadline < now]:
            running.cancel()
        if self.principal.expires_at < math.inf:
            self.look_at_credential()

    # ---- what comes

    def take(self, kind: int, flags: int, call: int, message: Buffer) -> None:
        if kind == Kind.CALL:
            if self.principal is not NOBODY:  # which is told soon, or was, and knows then that no call was begun
                self._begin(flags, call, message)
        elif kind == Kind.PUSH:
            running = self._calls.get(call)
            if running is not None and running.call is not None:
                running.call.put(message, is_last=bool(flags & LAST))
        elif kind == Kind.CANCEL:
            self.drop(call)
            if (running := self._calls.get(call)) is not None:
                running.cancel()
        elif kind != Kind.GOAWAY:
            raise ProtocolError(f"a client sends no frames of kind {kind}")

    def allowed_bytes(self, kind: int, call: int, first: bytes) -> int:
        if self.principal is NOBODY or (kind == Kind.PUSH and call not in self._calls):
            return 0
        return self._server.request_size_bytes_max(read_call_head(first).method if kind == Kind.CALL else "")

    def too_large(self, kind: int, call: int, allowed_bytes: int) -> None:
        error = MessageTooLarge(
            f"a request is larger than {allowed_bytes} bytes, as much as one may have: send several"
        )
        self._refuse_call(call, error)

    def arriving(self, size_bytes: int) -> None:
        server = self._server
        server.arriving_bytes += size_bytes
        if size_bytes > 0 and server.arriving_bytes > server.limits.arriving_bytes:
            server.make_room()

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
        self.send(Kind.ERROR, 0, call, bytes_of_error(error))

    def hold(self, size_bytes: int) -> None:
        """So many bytes more of requests are under way, or fewer."""
        allowed = self._server.limits.held_bytes
        before, self._held_bytes = self._held_bytes, self._held_bytes + size_bytes
        if self.usage is not None:
            self.usage.in_flight_bytes += size_bytes
        if (before > allowed) != (self._held_bytes > allowed):
            self.hold_back(self._held_bytes > allowed)

    def _begin(self, flags: int, call: int, message: Buffer) -> None:
        if self._is_going:
            if call <= self._last_call:  # of the others, the client knows from GOAWAY that they are not begun
                self._fail(call, BrokerUnavailable("this server is stopping: ask another one"))
            return
        head = read_call_head(message)
        if call in self._calls:
            raise ProtocolError(f"call {call} is begun twice")
        self._last_call = max(self._last_call, call)  # a small call passes a large one
        found = self._server.handlers.get(head.method)
        if found is None:
            error: TxmsgError = ProtocolError(
                f"the method {head.method[:100]} is not known here: this server is of an older release than the "
                "client, or of another kind; upgrade servers before clients"
            )
            self._fail(call, error)
            return
        if len(self._calls) >= self._server.limits.calls:
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
        self._server.calls_begun += 1
        deadline = self.loop.time() + head.timeout_ms / 1000 if head.timeout_ms else float("inf")
        running = self._calls[call] = _Running(deadline, len(message), arguments[0])
        self.hold(running.size_bytes)
        if method.takes_many or method.gives_many or hasattr(handler, "with_call"):
            running.call = ServerCall(self, call, method)
            if method.takes_many:
                running.call.begin(arguments[0], is_last=bool(flags & LAST))
                arguments = ()
            arguments += (running.call,)
        running.task = self.loop.create_task(self._answer(call, handler, arguments, running.call))
        running.task.add_done_callback(lambda _: self._forget(call, running))

    def _why_not(self, method: Method[Any, Any], request: Any, size_bytes: int) -> TxmsgError | None:
        """Why this user may not make this call now."""
        if (guard := self._server.guard) is None:
            return None
        refused = guard.refusal(self.principal, method.name, request)
        if refused is None and self.usage is not None and self.usage.is_limited:
            return self.usage.refusal(size_bytes)
        return refused

    async def _answer(
        self, call: int, handler: Handler, arguments: tuple[Any, ...], told: ServerCall[Any, Any] | None
    ) -> None:
        answering.set(self)
        try:
            if self.usage is not None:
                await self.usage.request()
            reply = await handler(*arguments)
            message = b"" if reply is None else reply.SerializeToString()
        except TxmsgError as exc:
            self._fail(call, exc)
        except Exception as exc:  # noqa: BLE001 - the root of a task
            _log.exception("server.call_failed", "a call from %(peer)s failed", peer=self.peer_name)
            self._fail(call, TxmsgError(f"the server failed: {type(exc).__name__}; its log says more"))
        else:
            self.send(Kind.REPLY, 0, call, message)
            await self.drained(call)  # a call whose reply is large is under way until the client is taking it
            if told is not None and not self.is_lost:
                told.unsent = _ignore

    def _fail(self, call: int, error: TxmsgError) -> None:
        self._server.calls_failed[error.code] += 1
        self.drop(call)  # what had not left of it
        self.send(Kind.ERROR, 0, call, bytes_of_error(error))

    def _forget(self, call: int, running: _Running) -> None:
        del self._calls[call]
        self.hold(-running.size_bytes)
        if running.call is not None:
            running.call.forget()


class ServerCall(Generic[RequestT, ReplyT]):
    """A call in which messages are many, as the method has it that answers: iterate over requests, `send` replies."""

    def __init__(self, connection: ServerConnection, call: int, method: Method[RequestT, ReplyT]) -> None:
        self.connection = connection
        self._call = call
        self.method = method
        self._requests: deque[RequestT | Buffer] = deque()
        self._is_ended = False
        self._came = asyncio.Event()
        self.unsent: Callable[[], object] = _ignore
        """Called when the reply has not left: the connection was lost, or the client has cancelled the call."""

    def begin(self, request: RequestT, *, is_last: bool) -> None:
        """The first request, which came with the call."""
        self._requests.append(request)
        self._is_ended = is_last
        self._came.set()

    def put(self, message: Buffer, *, is_last: bool) -> None:
        """Another one came. A last one that is empty is only the end."""
        self._is_ended = is_last
        if message or not is_last:
            self._requests.append(message)
            self.connection.hold(len(message))
        self._came.set()

    def forget(self) -> None:
        """The call is over: what was not taken is dropped."""
        self.unsent()
        self.connection.hold(-sum(len(request) for request in self._requests if isinstance(request, Buffer)))
        self._requests.clear()

    def __aiter__(self) -> ServerCall[RequestT, ReplyT]:
        return self

    async def __anext__(self) -> RequestT:
        while not self._requests:
            if self._is_ended:
                raise StopAsyncIteration
            self._came.clear()
            await self._came.wait()
        request = self._requests.popleft()
        if isinstance(request, Buffer):
            self.connection.hold(-len(request))
            return read_request(self.method, request)
        return request

    async def send(self, reply: ReplyT, data: Sequence[Buffer] = ()) -> None:
        """Sends a reply, with data if it has some, and returns when the client is taking it."""
        self.connection.send(Kind.PUSH, 0, self._call, *pieces_of(reply, data))
        await self.connection.drained(self._call)


def read_request(method: Method[RequestT, Any], data: Buffer) -> RequestT:
    """The request in these bytes. Raises ProtocolError; InvalidName for a text that no database can store."""
    try:
        request = method.request.FromString(data)  # type: ignore[arg-type]  # it takes any buffer
    except (DecodeError, RecursionError) as exc:
        raise ProtocolError(f"a request of {len(data)} bytes cannot be read: {exc}") from exc
    if (error := nul_in(request)) is not None:
        raise error
    return request
