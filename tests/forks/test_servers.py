"""Forking servers: gunicorn, Celery and uvicorn, run as their users run them, and a gunicorn worker of gevent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.broker_process import BrokerProcess
from tests.forks.programs import RUN_S_MAX, lines_of
from tests.integration.client_harness import message_count
from tests.ports import own_port
from tests.waiting import until
from txmsg.runtime.child import Child


@contextmanager
def running(directory: Path, broker: BrokerProcess, *command: str, program: str) -> Iterator[Path]:
    """Run `python -m COMMAND` beside this program, service.py, until SIGTERM ends it cleanly. Yields its log."""
    (directory / "service.py").write_text(textwrap.dedent(program), encoding="utf-8")
    log = directory / "service.log"
    env = {"BROKER": broker.address, "DIRECTORY": str(directory), "PYTHONPATH": f"{directory}:{Path.cwd()}"}
    child = Child("the service", command, log=log, env=env)
    try:
        yield log
        assert child.stop(RUN_S_MAX), log.read_text()
        assert child.returncode == 0, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        child.stop(0)


def said_by(log: Path, port: int) -> str:
    """Return the answer of the service, once it answers."""

    def ask() -> str:
        try:
            with urlopen(f"http://127.0.0.1:{port}/", timeout=RUN_S_MAX) as answer:
                return str(answer.read().decode())
        except (URLError, ConnectionError):
            return ""

    return until(ask, why=log.read_text())


def of_two_workers(log: Path, port: int) -> set[str]:
    """Return the answers until two workers have answered twice; each states its process id and something new."""
    said: list[list[str]] = []

    def both() -> bool:
        said.append(said_by(log, port).split())
        workers = [worker for worker, _ in said]
        return sum(workers.count(each) > 1 for each in set(workers)) == 2

    until(both)
    return {new for _, new in said}


def test_gunicorn_workers_can_send_after_a_send_before_the_fork(
    broker: BrokerProcess, notify_url: str, tmp_path: Path
) -> None:
    program = """
        import os
        from txmsg import Message, Producer

        producer = Producer(os.environ["BROKER"], group="web", timeout_s=60)
        producer.send(Message("t", b"when imported"))

        def application(environ, start_response):
            sent = producer.send(Message("t", b"in a worker"))
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [f"{os.getpid()} {sent}".encode()]
    """
    settings = """
        def on_exit(server):
            import service
            service.producer.send(service.Message("t", b"when the workers have ended"))
    """
    port = own_port()
    (tmp_path / "settings.py").write_text(textwrap.dedent(settings), encoding="utf-8")
    options = ["--preload", "-w", "2", "--threads", "4", "-b", f"127.0.0.1:{port}", "-c", f"{tmp_path}/settings.py"]
    with running(tmp_path, broker, "gunicorn", *options, "service", program=program) as log:
        sent = of_two_workers(log, port)
    assert message_count(notify_url) == len(sent) + 2


@pytest.mark.long
def test_several_uvicorn_workers_can_send(broker: BrokerProcess, notify_url: str, tmp_path: Path) -> None:
    program = """
        import os
        from txmsg import AsyncProducer, Message

        producer = AsyncProducer(os.environ["BROKER"], group="web", timeout_s=60)

        async def application(scope, receive, send):
            if scope["type"] == "lifespan":
                for done in ("startup", "shutdown"):
                    await receive()
                    await (producer.start() if done == "startup" else producer.close())
                    await send({"type": f"lifespan.{done}.complete"})
                return
            sent = await producer.send(Message("t", b"x"))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": f"{os.getpid()} {sent}".encode()})
    """
    port = own_port()
    command = ["uvicorn", "service:application", "--workers", "2", "--port", str(port)]
    with running(tmp_path, broker, *command, program=program) as log:
        sent = of_two_workers(log, port)
    assert message_count(notify_url) == len(sent)


@pytest.mark.long
def test_celery_prefork_worker_can_send_after_its_parent_has_sent(
    broker: BrokerProcess, notify_url: str, tmp_path: Path
) -> None:
    program = """
        import os
        from celery import Celery
        from celery.signals import worker_init, worker_shutdown
        from txmsg import Message, Producer

        directory = os.environ["DIRECTORY"]
        app = Celery("service", broker="filesystem://")
        app.conf.broker_transport_options = {
            "data_folder_in": directory + "/queue", "data_folder_out": directory + "/queue",
            "control_folder": directory + "/control",
        }
        producer = Producer(os.environ["BROKER"], group="web", timeout_s=60)

        @worker_init.connect
        @worker_shutdown.connect
        def in_parent(**_):
            producer.send(Message("t", b"in the parent"))

        @app.task
        def work():
            sent = producer.send(Message("t", b"in a worker"))
            with open(directory + "/sent", "a") as file:
                file.write(f"{os.getpid()} {sent}\\n")
    """
    (tmp_path / "queue").mkdir()
    (tmp_path / "control").mkdir()
    options = ["-P", "prefork", "-c", "2", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    tasks = 0
    with running(tmp_path, broker, "celery", "-A", "service", "worker", *options, program=program) as log:

        def work_of_both() -> bool:
            nonlocal tasks
            env = {**os.environ, "BROKER": broker.address, "DIRECTORY": str(tmp_path)}
            text = "import service; [service.work.delay() for _ in range(20)]"
            subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=env, check=True, timeout=RUN_S_MAX)
            tasks += 20
            until(lambda: len(lines_of(tmp_path / "sent")) == tasks, why=log.read_text())
            return len({line.split()[0] for line in lines_of(tmp_path / "sent")}) == 2

        until(work_of_both)
    assert len({line.split()[1] for line in lines_of(tmp_path / "sent")}) == tasks
    assert message_count(notify_url) == tasks + 2


def test_gevent_worker_of_gunicorn_is_refused_at_once_with_the_fix(broker: BrokerProcess, tmp_path: Path) -> None:
    program = """
        import os
        from txmsg import Message, MisuseError, Producer

        producer = Producer(os.environ["BROKER"], group="web", timeout_s=60)

        def application(environ, start_response):
            try:
                said = producer.send(Message("t", b"x"))
            except MisuseError as exc:
                said = str(exc)
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [said.encode()]
    """
    port = own_port()
    command = ["gunicorn", "-k", "gevent", "-b", f"127.0.0.1:{port}", "service"]
    with running(tmp_path, broker, *command, program=program) as log:
        said = said_by(log, port)
    assert said.startswith("gevent has patched threading and select in this process")
    assert "patch_all(thread=False, select=False)" in said
