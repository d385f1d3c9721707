"""A webhook for tests: stores what it receives and answers as configured."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Webhook:
    """The received notifications, and the answers to the next requests.

    They are not until go_on is set, and their bodies do not follow until ends_body is set.
    """

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.go_on = threading.Event()
        self.go_on.set()
        self.ends_body = threading.Event()
        self.ends_body.set()
        self.asked = threading.Semaphore(0)
        self.url = ""

    def told(self) -> list[tuple[str, str]]:
        """Return status and rule of each received alert, in order."""
        return [
            (alert["status"], alert["labels"]["alertname"]) for content in self.received for alert in content["alerts"]
        ]


@contextmanager
def receiving() -> Iterator[Webhook]:
    """Run a webhook on its own port within the block."""
    webhook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = webhook.status
            webhook.asked.release()
            webhook.go_on.wait()
            if status < 300:
                webhook.received.append(content)
            try:
                self.send_response(status)
                for name, value in webhook.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "2")
                self.end_headers()
                webhook.ends_body.wait()
                self.wfile.write(b"ok")
            except OSError:
                return  # the client has disconnected

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    webhook.url = f"http://127.0.0.1:{server.server_port}/T0KEN"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield webhook
    finally:
        webhook.go_on.set()
        webhook.ends_body.set()
        server.shutdown()
        thread.join()
        server.server_close()
