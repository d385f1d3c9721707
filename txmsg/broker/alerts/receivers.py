"""Notifies a receiver: a webhook, an address by e-mail, a program. Knows no database.

A webhook gets the JSON that Prometheus' Alertmanager sends (version 4), so it works with all receivers of that. Errors
contain neither URLs nor passwords.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import smtplib
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from email.message import EmailMessage
from functools import partial
from typing import Any, Final, assert_never

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random

from txmsg.broker.alerts.file import CommandReceiver, EmailReceiver, Receiver, WebhookReceiver
from txmsg.runtime.threads import DaemonThreads

ATTEMPT_S_MAX: Final = 10.0
"""Maximum seconds of an attempt."""
ATTEMPTS: Final = 2
"""Attempts in a row; further ones come later, from any broker."""
PAUSE_S_MAX: Final = 2.0
ERROR_LENGTH_MAX: Final = 500
COMMAND_ENVIRONMENT: Final = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""The variables of the broker's environment that a program gets."""


class ReceiverFailed(Exception):
    """A receiver was not notified, as far as is known. The text is for people, and contains no secret."""


class Messenger:
    """Notifies one receiver, one notification at a time.

    Blocking calls run in a thread that the end of the broker does not wait for.
    """

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._threads = DaemonThreads(1, name=f"alerts-{receiver.name}")

    async def notify_receiver(
        self, notification_id: int, content: Mapping[str, Any], *, attempts: int = ATTEMPTS
    ) -> None:
        """Notify the receiver of alerts. Raises ReceiverFailed."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(ReceiverFailed),
            stop=stop_after_attempt(attempts),
            wait=wait_random(0.5, PAUSE_S_MAX),
            reraise=True,
        ):
            with attempt:
                await self._tell_once(notification_id, content)

    def close(self) -> None:
        """Start no further attempts."""
        self._threads.shutdown()

    async def _tell_once(self, notification_id: int, content: Mapping[str, Any]) -> None:
        target = self.receiver.target
        try:
            async with asyncio.timeout(ATTEMPT_S_MAX):
                match target:
                    case WebhookReceiver():
                        await self._in_thread(_post, target, notification_id, content)
                    case EmailReceiver():
                        await self._in_thread(_mail, target, notification_id, content)
                    case CommandReceiver():
                        await _run(target, notification_id, content)
                    case _:
                        assert_never(target)
        except TimeoutError:
            raise ReceiverFailed(f"no answer within {ATTEMPT_S_MAX:g} s") from None

    async def _in_thread(self, call: Any, *arguments: Any) -> None:
        line = _CancellableConnection()
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, call, line, *arguments)
        finally:
            # Also after a timeout: the thread would otherwise stay with a receiver that does not answer.
            line.cut()


class _CancellableConnection:
    """The connection that a thread uses; `cut` ends it from outside.

    The timeout of a socket applies to each read: a peer that sends a byte now and then would hold the thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    def uses(self, connected: socket.socket) -> None:
        """Note the connection when it is made, or again for another one."""
        with self._lock:
            if self._is_cut:
                raise TimeoutError
            if self._socket is not None:
                self._socket.close()
            # A descriptor of its own: TLS takes the other one, and the thread may close it at any time.
            self._socket = socket.socket(fileno=os.dup(connected.fileno()))

    def cut(self) -> None:
        """End the connection, also one that is made later. Idempotent."""
        with self._lock:
            self._is_cut = True
            if self._socket is not None:
                with suppress(OSError):  # the peer has ended it
                    self._socket.shutdown(socket.SHUT_RDWR)
                self._socket.close()


# ---- webhook


class _Http(urllib.request.HTTPHandler):
    """http:// over a connection that can be cut."""

    def __init__(self, line: _CancellableConnection) -> None:
        super().__init__()
        self._line = line

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_HttpConnection, self._line), req)


class _Https(urllib.request.HTTPSHandler):
    """https:// over a connection that can be cut."""

    def __init__(self, line: _CancellableConnection) -> None:
        super().__init__()
        self._line = line

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_HttpsConnection, self._line), req)


def _connected(line: _CancellableConnection, *where: Any) -> socket.socket:
    """Connect as socket.create_connection, over a connection that can be cut."""
    return _on(line, socket.create_connection(*where))


def _on(line: _CancellableConnection, connected: socket.socket) -> socket.socket:
    """Note the connection before anything is read: a greeting, a proxy, or the handshake of TLS may be slow."""
    try:
        line.uses(connected)
    except TimeoutError:
        connected.close()
        raise
    return connected


class _HttpConnection(http.client.HTTPConnection):
    def __init__(self, line: _CancellableConnection, host: str, **settings: Any) -> None:
        super().__init__(host, **settings)
        self._create_connection = partial(_connected, line)


class _HttpsConnection(http.client.HTTPSConnection):
    def __init__(self, line: _CancellableConnection, host: str, **settings: Any) -> None:
        super().__init__(host, **settings)
        self._create_connection = partial(_connected, line)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a redirected POST would become a GET, whose answer proves nothing."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _post(
    line: _CancellableConnection, webhook: WebhookReceiver, notification_id: int, content: Mapping[str, Any]
) -> None:
    request = urllib.request.Request(
        webhook.url.reveal(),
        data=json.dumps(content).encode(),
        headers={"Content-Type": "application/json", "X-Txmsg-Notification": str(notification_id)},
        method="POST",
    )
    opener = urllib.request.build_opener(_NoRedirect, _Http(line), _Https(line))
    try:
        # The body is not read: the status alone decides.
        opener.open(request, timeout=ATTEMPT_S_MAX).close()
    except urllib.error.HTTPError as exc:
        with exc:
            raise ReceiverFailed(f"the webhook answered {exc.code}") from None
    except urllib.error.URLError as exc:
        reason = exc.reason.strerror if isinstance(exc.reason, OSError) else None
        raise ReceiverFailed(f"the webhook cannot be reached: {reason or type(exc.reason).__name__}") from None
    except (OSError, http.client.HTTPException) as exc:
        raise ReceiverFailed(f"the webhook did not answer: {type(exc).__name__}") from None


# ---- e-mail


class _Smtp(smtplib.SMTP):
    def __init__(self, line: _CancellableConnection, host: str, port: int) -> None:
        self._line = line
        super().__init__(host, port, timeout=ATTEMPT_S_MAX)

    # smtplib's own hook: `connect` already reads the greeting.
    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        made: socket.socket = super()._get_socket(host, port, timeout)  # type: ignore[misc]
        return _on(self._line, made)


class _SmtpTls(smtplib.SMTP_SSL):
    def __init__(self, line: _CancellableConnection, host: str, port: int, context: ssl.SSLContext) -> None:
        self._line = line
        super().__init__(host, port, timeout=ATTEMPT_S_MAX, context=context)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        made: socket.socket = super()._get_socket(host, port, timeout)  # type: ignore[misc]
        return _on(self._line, made)


def _mail(line: _CancellableConnection, email: EmailReceiver, notification_id: int, content: Mapping[str, Any]) -> None:
    message = EmailMessage()
    message["From"], message["To"] = email.sender, ", ".join(email.to)
    message["Subject"] = subject(content)
    message["X-Txmsg-Notification"] = str(notification_id)
    message.set_content(text(content))
    context = ssl.create_default_context()
    try:
        with _smtp(line, email, context) as server:
            if email.tls == "starttls":
                server.starttls(context=context)
            if email.password is not None:
                server.login(email.user, email.password.reveal())
            server.send_message(message)
    except smtplib.SMTPResponseException as exc:
        raise ReceiverFailed(f"the mail server answered {exc.smtp_code} ({type(exc).__name__})") from None
    except (OSError, smtplib.SMTPException) as exc:
        raise ReceiverFailed(f"the mail server did not take it: {_why(exc)}") from None


def _smtp(line: _CancellableConnection, email: EmailReceiver, context: ssl.SSLContext) -> smtplib.SMTP:
    if email.tls == "tls":
        return _SmtpTls(line, email.host, email.port, context)
    return _Smtp(line, email.host, email.port)


def _why(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or type(exc).__name__


def subject(content: Mapping[str, Any]) -> str:
    """Return the subject of a mail: the first alert, and the number of further ones."""
    first, *others = content["alerts"]
    more = len(others) + content["truncatedAlerts"]
    line = f"[{first['status']}] {first['labels']['alertname']}: {first['annotations']['summary']}"
    return " ".join(f"{line[:150]}{f' (and {more} more)' if more else ''}".split())


def text(content: Mapping[str, Any]) -> str:
    """Return the text of a notification for people: each alert, and the action to take."""
    lines = []
    for alert in content["alerts"]:
        annotations, labels = alert["annotations"], alert["labels"]
        lines += [f"{alert['status'].upper()} {labels['alertname']} ({labels['severity']})", annotations["summary"]]
        if alert["status"] == "firing":
            lines += [annotations["action"], f"since {alert['startsAt']}"]
        else:
            lines.append(f"from {alert['startsAt']} to {alert['endsAt']}")
        lines.append("")
    if content["truncatedAlerts"]:
        lines.append(f"and {content['truncatedAlerts']} more: `txmsg alert list` shows all")
    return "\n".join(lines)


# ---- command


async def _run(command: CommandReceiver, notification_id: int, content: Mapping[str, Any]) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={
                # Not all variables: the broker's environment holds secrets, such as the password of the Notify
                # database.
                **{name: os.environ[name] for name in COMMAND_ENVIRONMENT if name in os.environ},
                "TXMSG_NOTIFICATION": str(notification_id),
                "TXMSG_SUBJECT": subject(content),
            },
            start_new_session=True,  # so that what it starts ends with it
        )
    except OSError as exc:
        raise ReceiverFailed(f"the command cannot be run: {exc.strerror}") from None
    try:
        try:
            await process.communicate(json.dumps(content).encode())
        except RuntimeError:  # uvloop's; asyncio's own loop passes over it: the command has ended, and did not read
            await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise ReceiverFailed(f"the command ended with status {process.returncode}")
