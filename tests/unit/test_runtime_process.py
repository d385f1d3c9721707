"""The event loop of a process. Each test runs in a separate process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

TIMEOUT_S = 60


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def test_a_process_that_closes_nothing_still_exits_cleanly() -> None:
    done = run_program("""
        import logging
        logging.disable()  # that there is no broker is said, and is not the point
        from txmsg import Consumer, Message, Producer
        producer = Producer("127.0.0.1:1", group="g").start()
        consumer = Consumer("127.0.0.1:1", group="g")
        consumer.subscribe("t")(print)
        consumer.start()
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_package_loads_neither_asyncio_nor_the_protocol_nor_sqlalchemy() -> None:
    done = run_program("""
        import sys
        import txmsg
        heavy = {"asyncio", "google.protobuf", "sqlalchemy"}
        assert not heavy & set(sys.modules), "heavy import"
        txmsg.Message("t", b"x")
        assert not heavy & set(sys.modules), "heavy import"
        from txmsg import *
        assert Producer and FenceCheckListener and BrokerUnavailable
    """)
    assert done.returncode == 0, done.stderr


def test_a_blocking_call_on_the_event_loop_of_txmsg_is_refused() -> None:
    done = run_program("""
        from txmsg.runtime.process import shared_loop
        from txmsg.errors import MisuseError
        async def nested():
            async def inner(): ...
            try:
                shared_loop().call(inner())
            except MisuseError:
                return "refused"
        assert shared_loop().call(nested()) == "refused"
    """)
    assert done.returncode == 0, done.stderr


_ALL = "gevent.monkey.patch_all()"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (_ALL, "", "threading and select"),
        ("", _ALL, "threading and select"),
        ("gevent.monkey.patch_select()", "", "select"),
        ("gevent.monkey.patch_all(thread=False, select=False)", "", None),
    ],
)
def test_a_gevent_patched_process_is_refused_with_a_remedy(before: str, after: str, told: str | None) -> None:
    """No broker listens at port 1: a call that is not refused would try to connect."""
    program = f"""
        import gevent, gevent.monkey
        {before or "pass"}
        import asyncio, concurrent.futures
        from txmsg import AsyncProducer, BrokerUnavailable, Message, MisuseError, Producer
        {after or "pass"}
        producer = Producer("127.0.0.1:1", group="g", timeout_s=0.5)
        def send_async():
            async def send():
                async with AsyncProducer("127.0.0.1:1", group="g", timeout_s=0.5) as producer:
                    await producer.send(Message("t", b"x"))
            asyncio.run(send())
        for send in (lambda: producer.send(Message("t", b"x")), send_async):
            try:
                send()
            except (BrokerUnavailable, MisuseError) as exc:
                print(type(exc).__name__, exc)
    """
    done = run_program(program)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    if told is None:
        assert all(each.startswith("BrokerUnavailable") for each in lines), lines
    else:
        patched = f"MisuseError gevent has patched {told} in this process, so txmsg would block forever"
        assert all(each.startswith(patched) and "patch_all(thread=False, select=False)" in each for each in lines), (
            lines
        )
