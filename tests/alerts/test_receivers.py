"""Receivers: a webhook, a mail server and a command that accept notifications, and that fail."""

from __future__ import annotations

import asyncio
import json
import os
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from tests.alerts.receiving import receiving
from tests.ports import own_port
from txmsg.broker.alerts import receivers
from txmsg.broker.alerts.file import CommandReceiver, EmailReceiver, Receiver, Secret, WebhookReceiver
from txmsg.broker.alerts.receivers import Messenger, ReceiverFailed, subject, text
from txmsg.checks.check import Severity

CONTENT: dict[str, Any] = {
    "status": "firing",
    "truncatedAlerts": 0,
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "TxmsgDeadLetters", "severity": "warning"},
            "annotations": {"summary": "group shop has 1 dead letters", "action": "Look at them."},
            "startsAt": "2026-01-01T00:00:00+00:00",
            "endsAt": "0001-01-01T00:00:00Z",
        }
    ],
}


async def tell(target: WebhookReceiver | EmailReceiver | CommandReceiver, content: dict[str, Any] = CONTENT) -> None:
    messenger = Messenger(Receiver(name="r", target=target, severity=Severity.WARNING))
    try:
        await messenger.notify_receiver(7, content, attempts=1)
    finally:
        messenger.close()


# ---- webhook


async def test_a_webhook_gets_the_content() -> None:
    with receiving() as webhook:
        await tell(WebhookReceiver(url=Secret(webhook.url)))
        assert webhook.received == [CONTENT]


@pytest.mark.parametrize(("status", "words"), [(500, "answered 500"), (404, "answered 404"), (302, "answered 302")])
async def test_refusing_webhook_is_reported_without_its_url(status: int, words: str) -> None:
    with receiving() as webhook:
        webhook.status, webhook.headers = status, {"Location": "/elsewhere"}
        with pytest.raises(ReceiverFailed, match=words) as told:
            await tell(WebhookReceiver(url=Secret(webhook.url)))
        assert "T0KEN" not in str(told.value)


async def test_unreachable_webhook_is_reported_without_its_url() -> None:
    with pytest.raises(ReceiverFailed, match="cannot be reached: Connection refused") as told:
        await tell(WebhookReceiver(url=Secret(f"http://127.0.0.1:{own_port()}/T0KEN")))
    assert "T0KEN" not in str(told.value)


async def test_webhook_that_does_not_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "ATTEMPT_S_MAX", 0.2)
    with receiving() as webhook:
        webhook.go_on.clear()
        with pytest.raises(ReceiverFailed, match=r"within 0.2 s|did not answer"):
            await tell(WebhookReceiver(url=Secret(webhook.url)))


async def test_webhook_answer_with_endless_body_counts_as_delivered() -> None:
    with receiving() as webhook:
        webhook.ends_body.clear()
        await tell(WebhookReceiver(url=Secret(webhook.url)))
        assert webhook.received == [CONTENT]


async def test_failed_notification_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "PAUSE_S_MAX", 0.5)
    with receiving() as webhook:
        webhook.status = 503
        messenger = Messenger(
            Receiver(name="r", target=WebhookReceiver(url=Secret(webhook.url)), severity=Severity.WARNING)
        )
        telling = asyncio.create_task(messenger.notify_receiver(7, CONTENT))
        await asyncio.to_thread(webhook.asked.acquire)
        webhook.status = 200
        await telling
        messenger.close()
        assert webhook.received == [CONTENT]


@contextmanager
def dripping(begin: bytes) -> Iterator[tuple[int, threading.Event]]:
    """Run a server that sends its answer byte by byte without end; report if its client has disconnected."""
    gone, closing = threading.Event(), threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                self.request.sendall(begin)
                while not closing.wait(0.02):
                    self.request.sendall(b"x")
            except OSError:
                gone.set()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1], gone
        finally:
            closing.set()
            server.shutdown()
            thread.join()


def mailbox(port: int, tls: str = "none") -> EmailReceiver:
    to = ["a@example.org", "b@example.org"]
    return EmailReceiver(
        to=to, sender="txmsg@example.org", host="127.0.0.1", port=port, tls=tls, user="", password=None
    )


@pytest.mark.parametrize(
    ("begin", "target"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", lambda port: WebhookReceiver(url=Secret(f"http://127.0.0.1:{port}/"))),
        (b"220-", mailbox),
    ],
    ids=["webhook", "mail"],
)
async def test_dripping_webhook_answer_does_not_hold_a_thread(
    begin: bytes, target: Callable[[int], WebhookReceiver | EmailReceiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receivers, "ATTEMPT_S_MAX", 0.3)
    with dripping(begin) as (port, gone):
        with pytest.raises(ReceiverFailed, match=r"within 0.3 s"):
            await tell(target(port))
        assert await asyncio.to_thread(gone.wait, 20)


def test_connection_made_after_the_timeout_is_closed() -> None:
    line = receivers._CancellableConnection()
    line.cut()
    with dripping(b"220-") as (port, gone):
        with pytest.raises(TimeoutError):
            receivers._smtp(line, mailbox(port), ssl.create_default_context())
        assert gone.wait(60)


async def test_dripping_proxy_does_not_hold_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "ATTEMPT_S_MAX", 0.3)
    with dripping(b"HTTP/1.1 200") as (port, gone):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(ReceiverFailed, match=r"within 0.3 s"):
            await tell(WebhookReceiver(url=Secret("https://alerts.example/")))
        assert await asyncio.to_thread(gone.wait, 20)


# ---- command


def program(tmp_path: Path, body: str) -> CommandReceiver:
    path = tmp_path / "program.py"
    path.write_text(f"import json, os, sys\n{body}\n")
    return CommandReceiver(argv=[sys.executable, str(path), str(tmp_path / "out")])


async def test_command_gets_the_content_and_a_summary_line(tmp_path: Path) -> None:
    await tell(
        program(
            tmp_path,
            "given = [json.load(sys.stdin), os.environ['TXMSG_SUBJECT'], os.environ['TXMSG_NOTIFICATION']]\n"
            "open(sys.argv[1], 'w').write(json.dumps(given))",
        )
    )
    given = json.loads((tmp_path / "out").read_text())
    assert given == [CONTENT, "[firing] TxmsgDeadLetters: group shop has 1 dead letters", "7"]


async def test_command_does_not_get_secrets_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMSG_STORAGE", "postgresql://notify:secret@db/notify")
    monkeypatch.setenv("SHOP_URL", "postgresql://shop:secret@db/shop")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    await tell(program(tmp_path, "open(sys.argv[1], 'w').write(json.dumps(dict(os.environ)))"))
    given = json.loads((tmp_path / "out").read_text())
    assert given["LANG"] == "de_DE.UTF-8"
    assert given["PATH"] == os.environ["PATH"]
    # LC_CTYPE: set by Python itself.
    assert given.keys() <= {*receivers.COMMAND_ENVIRONMENT, "TXMSG_NOTIFICATION", "TXMSG_SUBJECT", "LC_CTYPE"}


def test_command_that_exits_without_reading_counts_as_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = asyncio.create_subprocess_exec

    async def ended(*argv: str, **options: Any) -> asyncio.subprocess.Process:
        process = await begin(*argv, **options)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", ended)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the loop of brokers
        runner.run(tell(CommandReceiver(argv=["/bin/true"])))
        with pytest.raises(ReceiverFailed, match="status 1"):
            runner.run(tell(CommandReceiver(argv=["/bin/false"])))


async def test_failing_or_missing_command_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ReceiverFailed, match="the command ended with status 3"):
        await tell(program(tmp_path, "sys.exit(3)"))
    with pytest.raises(ReceiverFailed, match="cannot be run: No such file"):
        await tell(CommandReceiver(argv=["/not/there"]))


async def test_hanging_command_is_killed_with_its_child_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "out"
    os.mkfifo(pid)
    body = (
        "import subprocess, time\nchild = subprocess.Popen(['sleep', '1000'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\ntime.sleep(1000)"
    )
    telling = asyncio.create_task(tell(program(tmp_path, body)))
    child = psutil.Process(int(await asyncio.to_thread(pid.read_text)))
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    await asyncio.to_thread(psutil.wait_procs, [child], 60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


# ---- e-mail


class _Smtp(socketserver.StreamRequestHandler):
    """An SMTP server that accepts one mail and answers the recipient as configured."""

    def handle(self) -> None:
        server: Any = self.server
        self._say("220 here")
        for raw in self.rfile:
            line = raw.decode().strip()
            server.lines.append(line)
            word = line.upper().split(" ")[0]
            if word == "EHLO":
                self._say("250 here")
            elif word == "RCPT":
                self._say(server.answer)
            elif word == "DATA":
                self._say("354 go on")
                while (text := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    server.mail.append(text)
                self._say("250 taken")
            elif word == "QUIT":
                self._say("221 bye")
                return
            elif word == "STARTTLS":
                self._say("454 not now")
            else:
                self._say("250 ok")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def mail_server(answer: str = "250 ok") -> Iterator[Any]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Smtp) as server:
        found: Any = server
        found.answer, found.lines, found.mail = answer, [], []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def email(server: Any, tls: str = "none") -> EmailReceiver:
    return mailbox(server.server_address[1], tls)


async def test_mail_states_the_problem_and_the_fix() -> None:
    with mail_server() as server:
        await tell(email(server))
    mail = "\n".join(server.mail)
    assert "Subject: [firing] TxmsgDeadLetters: group shop has 1 dead letters" in mail
    assert "X-Txmsg-Notification: 7" in mail
    assert "Look at them." in mail
    assert sum(line.upper().startswith("RCPT TO:") for line in server.lines) == 2  # Python 3.13 writes it in capitals


async def test_refused_mail_is_reported() -> None:
    with mail_server("550 nobody") as server:
        with pytest.raises(ReceiverFailed, match="the mail server did not take it: SMTPRecipientsRefused"):
            await tell(email(server))


async def test_no_mail_is_sent_without_the_required_encryption() -> None:
    with mail_server() as server:
        with pytest.raises(ReceiverFailed, match="SMTPNotSupportedError"):
            await tell(email(server, "starttls"))
        assert server.mail == []


def test_subject_is_one_line_and_counts_further_alerts() -> None:
    [alert] = CONTENT["alerts"]
    odd = {**alert, "annotations": {"summary": "a\r\nBcc: b" + "x" * 500, "action": ""}}
    content = {**CONTENT, "alerts": [odd, alert], "truncatedAlerts": 3}
    assert "\n" not in subject(content)
    assert "\r" not in subject(content)
    assert subject(content).endswith("(and 4 more)")
    assert "and 3 more" in text(content)
