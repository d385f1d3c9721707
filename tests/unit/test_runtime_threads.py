"""The threads on which user functions run."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import CancelledError

import pytest

from txmsg.runtime.threads import DaemonThreads

WAIT_S = 30.0


def test_functions_run_at_most_one_per_thread_and_all_complete() -> None:
    threads = DaemonThreads(3, name="t")
    together, running, most = threading.Barrier(3), [0], [0]
    lock = threading.Lock()

    def work(number: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.wait(WAIT_S)  # passes only when three are in it
        with lock:
            running[0] -= 1
        return number

    futures = [threads.submit(work, number) for number in range(9)]
    assert [future.result(WAIT_S) for future in futures] == list(range(9))
    assert most[0] == 3
    threads.shutdown()


def test_an_exception_reaches_the_waiter_and_the_thread_continues() -> None:
    threads = DaemonThreads(1, name="t")
    with pytest.raises(SystemExit):
        threads.submit(sys.exit).result(WAIT_S)
    assert threads.submit(pow, 2, exp=3).result(WAIT_S) == 8
    threads.shutdown()


def test_a_shutdown_cancels_pending_functions_and_ends_the_threads() -> None:
    threads = DaemonThreads(2, name="ending")
    began, go_on = threading.Semaphore(0), threading.Event()

    def work() -> bool:
        began.release()
        return go_on.wait(WAIT_S)

    first = [threads.submit(work) for _ in range(2)]
    late = threads.submit(work)
    for _ in first:
        assert began.acquire(timeout=WAIT_S)
    threads.shutdown()
    threads.shutdown()
    with pytest.raises(CancelledError):
        late.result(WAIT_S)
    with pytest.raises(RuntimeError, match="shutdown"):
        threads.submit(work)
    mine = [each for each in threading.enumerate() if each.name.startswith("ending-")]
    assert len(mine) == 2
    go_on.set()
    assert [future.result(WAIT_S) for future in first] == [True, True]
    for each in mine:
        each.join(WAIT_S)
        assert not each.is_alive()


def test_a_hanging_function_does_not_keep_the_process_alive() -> None:
    program = """
        import threading
        from txmsg.runtime.threads import DaemonThreads
        began = threading.Event()
        def hang():
            began.set()
            threading.Event().wait()
        DaemonThreads(1, name="t").submit(hang)
        assert began.wait(30)
        print("ending")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert done.stdout == "ending\n"


@pytest.mark.parametrize("run", ["loops.run_application(main())", "process.LoopThread().call(main())"])
def test_neither_loop_close_nor_process_exit_waits_for_user_threads(run: str) -> None:
    program = f"""
        import asyncio, threading
        from txmsg.runtime import loops, process

        async def main():
            began = threading.Event()

            def wait():
                began.set()
                threading.Event().wait()

            waiting = asyncio.create_task(asyncio.to_thread(wait))
            while not began.is_set():
                await asyncio.sleep(0)
            waiting.cancel()

        {run}
        print("ended")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "ended\n"
