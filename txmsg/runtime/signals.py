"""SIGINT and SIGTERM stop the work in the foreground in order; SIGHUP makes it read its settings again."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

_LOOK_S = 1.0
_STOPPING = (signal.SIGINT, signal.SIGTERM)

_Handler = Callable[[int, FrameType | None], object] | int | None

_stops: list[Callable[[], object]] = []
_before: dict[int, _Handler] = {}
_repeats = False
_came = False
_forking = threading.local()


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM, once; a second signal acts as it did before. Only on the main thread.

    A signal with a handler of the application or its server is left alone: two handlers would both try to end the
    process. Several blocks may be entered at a time, as by coroutines of one loop: all are stopped.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _stops.append(stop)
    if not _before:
        for number in _STOPPING:
            handler = signal.getsignal(number)
            if _is_default(handler):
                _before[number] = handler
                signal.signal(number, _on_signal)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _give_back()


def wait_for(stop: threading.Event) -> None:
    """Wait until the event is set, also by a handler of signals. On any thread."""
    # Not one wait without end: after SIGSTOP and SIGCONT any thread may take the signal, which does not wake the main
    # thread, and only that one runs handlers.
    while not stop.wait(_LOOK_S):
        pass


def _is_default(handler: _Handler) -> bool:
    """Return True for Python's and asyncio's handlers. asyncio.run's cancels its main task, which `stop` replaces."""
    is_asyncios = isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner)
    return is_asyncios or handler in {signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler}


def take_repeats_as_one() -> None:
    """Ignore further signals after the first one: a single stop may send several to this process.

    systemd signals all processes of a unit, and so does a supervisor that is one of them. For processes that another
    one ends if they take too long.
    """
    global _repeats  # noqa: PLW0603 - signals are of the process
    _repeats = True


def has_come() -> bool:
    """Return True if a signal has stopped this process."""
    return _came


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    global _came  # noqa: PLW0603 - signals are of the process
    _came = True
    _give_back()
    for stop in list(_stops):
        stop()


def _give_back() -> None:
    if _repeats and _came:
        return
    for number, handler in _before.items():
        if signal.getsignal(number) is _on_signal:  # else the application has set one meanwhile
            signal.signal(number, handler)
    _before.clear()


def leave_signals_to_parent() -> None:
    """Ignore SIGINT and SIGTERM, in a process that another one ends in order. On the main thread.

    Not by SIG_IGN, which programs that this process starts would inherit.
    """
    for number in _STOPPING:
        signal.signal(number, _pass_over)
        signal.siginterrupt(number, False)


def _pass_over(_number: int, _frame: FrameType | None) -> None:
    pass


# A forked copy of this process, as multiprocessing makes them, is not stopped in order: signals end it. They are
# blocked around the fork, so that none reaches the copy while it still has the parent's handlers.


def _block() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING) if any(map(_is_ours, _STOPPING)) else None


def _is_ours(number: int) -> bool:
    handler = signal.getsignal(number)
    return handler is _on_signal or handler is _pass_over


def _unblock() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _give_back_in_child() -> None:
    if _forking.mask is not None:
        for number in _STOPPING:
            if _is_ours(number):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _before.clear()
    _unblock()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_give_back_in_child)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set from now on. On the event loop of the main thread."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, stop.set)
    return stop


def call_on_hangup(call: Callable[[], None]) -> None:
    """Call `call` on SIGHUP, on the event loop of the main thread, on which the caller runs."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, call)


def call_on_hangup_by_thread(call: Callable[[], None]) -> None:
    """Call `call` on SIGHUP, on a thread of its own. On the main thread, in a process without an event loop."""
    asked: SimpleQueue[None] = SimpleQueue()  # a signal may come while a handler of it runs: `put` allows that

    def work() -> None:
        while True:
            asked.get()
            call()

    threading.Thread(target=work, name="txmsg-hangup", daemon=True).start()
    signal.signal(signal.SIGHUP, lambda *_: asked.put(None))
