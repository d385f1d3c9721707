"""Tells a receiver: a webhook, an address by e-mail, a program. Knows no database.

A webhook gets the JSON that Prometheus' Alertmanager sends (version 4), so that what understands that understands this.
No URL and no password is in an error.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from email.message import EmailMessage
from typing import Any, Final, assert_never

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random

from txmsg.broker.alerts.file import Command, Email, Receiver, Webhook
from txmsg.runtime.threads import DaemonThreads

ATTEMPT_S_MAX: Final = 10.0
"""How long telling may take."""
ATTEMPTS: Final = 2
"""In a row; further ones come later, from whichever broker."""
PAUSE_S_MAX: Final = 2.0
ERROR_LENGTH_MAX: Final = 500


class ReceiverFailed(Exception):
    """A receiver was not told, as far as is known. The text is for people, and has no secret in it."""


class Messenger:
    """Tells one receiver, one thing at a time. What blocks runs in a thread for which no end of the broker waits."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._threads = DaemonThreads(1, name=f"alerts-{receiver.name}")

    async def tell(self, notification_id: int, content: Mapping[str, Any], *, attempts: int = ATTEMPTS) -> None:
        """Tells the receiver of alerts. Raises ReceiverFailed."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(ReceiverFailed),
            stop=stop_after_attempt(attempts),
            wait=wait_random(0.5, PAUSE_S_MAX),
            reraise=True,
        ):
            with attempt:
                await self._tell_once(notification_id, content)

    def close(self) -> None:
        """Begins nothing more."""
        self._threads.shutdown()

    async def _tell_once(self, notification_id: int, content: Mapping[str, Any]) -> None:
        target = self.receiver.target
        try:
            async with asyncio.timeout(ATTEMPT_S_MAX):
                match target:
                    case Webhook():
                        await self._in_thread(_post, target, notification_id, content)
                    case Email():
                        await self._in_thread(_mail, target, notification_id, content)
                    case Command():
                        await _run(target, notification_id, content)
                    case _:
                        assert_never(target)
        except TimeoutError:
            raise ReceiverFailed(f"no answer within {ATTEMPT_S_MAX:g} s") from None

    async def _in_thread(self, call: Any, *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)


# ---- webhook


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET, whose answer says nothing."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _post(webhook: Webhook, notification_id: int, content: Mapping[str, Any]) -> None:
    request = urllib.request.Request(
        webhook.url.reveal(),
        data=json.dumps(content).encode(),
        headers={"Content-Type": "application/json", "X-Txmsg-Notification": str(notification_id)},
        method="POST",
    )
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        # The body is not read: the timeout is of each read of the socket, so one that drips would hold the thread.
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


def _mail(email: Email, notification_id: int, content: Mapping[str, Any]) -> None:
    message = EmailMessage()
    message["From"], message["To"] = email.sender, ", ".join(email.to)
    message["Subject"] = subject(content)
    message["X-Txmsg-Notification"] = str(notification_id)
    message.set_content(text(content))
    context = ssl.create_default_context()
    try:
        with _smtp(email, context) as server:
            if email.tls == "starttls":
                server.starttls(context=context)
            if email.password is not None:
                server.login(email.user, email.password.reveal())
            server.send_message(message)
    except smtplib.SMTPResponseException as exc:
        raise ReceiverFailed(f"the mail server answered {exc.smtp_code} ({type(exc).__name__})") from None
    except (OSError, smtplib.SMTPException) as exc:
        raise ReceiverFailed(f"the mail server did not take it: {_why(exc)}") from None


def _smtp(email: Email, context: ssl.SSLContext) -> smtplib.SMTP:
    if email.tls == "tls":
        return smtplib.SMTP_SSL(email.host, email.port, timeout=ATTEMPT_S_MAX, context=context)
    return smtplib.SMTP(email.host, email.port, timeout=ATTEMPT_S_MAX)


def _why(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or type(exc).__name__


def subject(content: Mapping[str, Any]) -> str:
    """The subject of a mail: the first alert, and how many more there are."""
    first, *others = content["alerts"]
    more = len(others) + content["truncatedAlerts"]
    line = f"[{first['status']}] {first['labels']['alertname']}: {first['annotations']['summary']}"
    return " ".join(f"{line[:150]}{f' (and {more} more)' if more else ''}".split())


def text(content: Mapping[str, Any]) -> str:
    """What people read of a notification: each alert, and what to do."""
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


async def _run(command: Command, notification_id: int, content: Mapping[str, Any]) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "TXMSG_NOTIFICATION": str(notification_id), "TXMSG_SUBJECT": subject(content)},
            start_new_session=True,  # so that what it starts ends with it
        )
    except OSError as exc:
        raise ReceiverFailed(f"the command cannot be run: {exc.strerror}") from None
    try:
        await process.communicate(json.dumps(content).encode())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise ReceiverFailed(f"the command ended with status {process.returncode}")
