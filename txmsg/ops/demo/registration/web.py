"""JSON over HTTP on this machine, both ends, from the standard library. Knows nothing of registrations."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from txmsg.runtime.logs import EventLog
from txmsg.wire.listening import loopback, loopback_end

_log = EventLog(__name__)

Handler = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]
"""The JSON of a request to (status, JSON of the answer)."""

_TIMEOUT_S = 30.0


class _PostRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one segment: else a delayed acknowledgement costs 40 ms
    server: RegistrationServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status, answer = self.server.handler(request)
        except Exception as exc:  # noqa: BLE001 - the root of this request: logged, and answered
            _log.exception("demo.request_failed", "request %(request)s failed", request=request)
            status, answer = 500, {"error": f"{type(exc).__name__}: {exc}"}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        _log.debug("demo.requested", "%(request)s", request=format % args)


class RegistrationServer(ThreadingHTTPServer):
    """Answers POST requests with `handler`, a thread per connection, on a free port of loopback."""

    daemon_threads = True

    def __init__(self, handler: Handler) -> None:
        self.address_family, host = loopback_end()
        super().__init__((host, 0), _PostRequest)
        self.handler = handler

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's also asks resolvers for the name of the address, which may be slow

    @property
    def address(self) -> str:
        return f"{loopback()}:{self.server_address[1]}"


class RegistrationCaller:
    """Calls servers; keeps one connection per thread and address. Raises OSError or http.client.HTTPException.

    Nothing is retried: whether a broken call took effect is not known here.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def post(self, address: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        connections: dict[str, http.client.HTTPConnection] = self._local.__dict__.setdefault("connections", {})
        connection = connections.get(address)
        if connection is None:
            connection = connections[address] = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
        try:
            connection.request("POST", "/", json.dumps(request), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except BaseException:
            connections.pop(address).close()
            raise
