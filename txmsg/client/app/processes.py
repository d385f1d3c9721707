"""Handlers in processes of their own, for CPU-bound work: Python runs one thread at a time.

Each call waits, on its thread, for one process, which is started if none is free. A process that dies costs the message
that it handled one delivery, and no other. Children end with their parent in any case. Each side learns of the other's
end from the system, not from the end of the pipe: a program that a handler has started, or a copy of the process, may
survive and hold the pipe. Such programs get the stdin and signals that a shell would give them: an empty stdin, and
signals that act.

A child imports the module of its handler. Its log records are logged by this process, at the levels set here. Hooks of
the application are entered in this process alone, and so are middleware and rates.
"""

from __future__ import annotations

import atexit
import copy
import functools
import importlib
import inspect
import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Any, Final

from txmsg.client.app.dependencies import NO_OVERRIDES, Injected, Overrides
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage
from txmsg.runtime.child import empty_stdin
from txmsg.runtime.logs import logger_of_application
from txmsg.runtime.reason import text_of, with_reason
from txmsg.runtime.signals import leave_signals_to_parent
from txmsg.runtime.user_function import name_of

_Reference = tuple[str, str, tuple[type, ...], tuple[tuple[Callable[..., Any], Callable[..., Any]], ...]]
"""Module and qualified name of a function, the types of payloads that its topics know, and pairs of overrides."""
_END_S_MAX: Final = 0.2
"""Seconds that an unused process has to end by itself."""
_LOOK_S: Final = 0.5
"""Seconds between looks where the system does not report the end of a process: on systems other than Linux."""
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_SPAWN = get_context("spawn")  # a copy of a process with threads may hang at once


class HandlerProcessDied(RuntimeError):
    """The process of a handler ended while it handled a message: a signal, too little memory, or a library's crash."""


def check_importable(what: str, handler: Callable[..., Any]) -> None:
    """Raise MisuseError for a handler that another process could not import."""
    if not inspect.isfunction(handler) or "<" in handler.__qualname__:
        raise MisuseError(
            f'{what} is {name_of(handler)}, which runs_in="processes" could not import there: make it a def at the top '
            "of its module"
        )


def _check_found(what: str, given: Callable[..., Any]) -> None:
    """Raise MisuseError for an object that pickle sends by name, and that would not be the same in another process."""
    try:
        is_found = pickle.loads(pickle.dumps(given)) == given
    except Exception:  # noqa: BLE001 - it raises errors of several kinds, and those of a user's `__reduce__`
        is_found = False
    if not is_found:
        raise MisuseError(
            f'{what} is {name_of(given)}, which runs_in="processes" could not import there: put it at the top of its '
            "module, under its own name"
        )


class HandlerProcesses:
    """A handler that runs in processes, as many as there are calls at once. Called on threads.

    payload_types: of its messages, if their topics know them. overrides: replacements of its dependencies. Raises
    MisuseError if another process could not import one of these.
    """

    def __init__(
        self, handler: Callable[..., Any], payload_types: tuple[type, ...] = (), overrides: Overrides = NO_OVERRIDES
    ) -> None:
        self._name = name_of(handler)
        for payload_type in payload_types:
            _check_found(f"the type of the payloads of {self._name}", payload_type)
        for overridden, stand_in in overrides.items():
            _check_found(f"a dependency of {self._name} that is overridden", overridden)
            _check_found(f"the replacement of a dependency of {self._name}", stand_in)
        self._reference: _Reference = (handler.__module__, handler.__qualname__, payload_types, (*overrides.items(),))
        self._lock = threading.Lock()  # of the next three
        self._free: list[_Process] = []
        self._all: set[_Process] = set()
        self._is_closed = False
        atexit.register(self._close_at_exit, os.getpid())

    def __call__(self, message: ReceivedMessage) -> None:
        """Handle a message in a process. Raises the handler's exception, or HandlerProcessDied."""
        work = pickle.dumps((self._reference, tuple(message._replace(headers=dict(message.headers)))))
        # Outside the lock from here on: a handler may run for minutes, and `close` needs the lock to kill its process.
        process = self._taken()
        try:
            error = process.do(work)
        except (EOFError, OSError) as exc:
            with self._lock:
                self._all.discard(process)
            raise HandlerProcessDied(
                f"the process of {self._name} ended {process.end_process()} while it had this"
            ) from exc
        except BaseException:  # as of a filter of the logging here: what the process still says is not for the next one
            with self._lock:
                self._all.discard(process)
            process.end_process()
            raise
        with self._lock:
            if not self._is_closed:
                self._free.append(process)
        if error is not None:
            raise error

    def close(self) -> None:
        """End the processes at once, whatever they do."""
        atexit.unregister(self._close_at_exit)
        with self._lock:
            self._is_closed = True
            free, self._free = self._free, []
            for process in self._all:  # those that no other thread has begun to end
                process.kill()  # a thread that waits for it notices, and says what became of its message
        for process in free:
            process.end_process()

    def _close_at_exit(self, pid: int) -> None:
        """Close at the interpreter's exit, if no one has: multiprocessing would wait for processes that leave its
        SIGTERM to their parent."""
        if pid == os.getpid():  # else this is a copy, and the processes are not its own
            self.close()

    def _taken(self) -> _Process:
        with self._lock:
            if self._is_closed:
                raise MisuseError(f"the processes of {self._name} are closed")
            while self._free:
                process = self._free.pop()
                if process.is_alive():
                    return process
                self._all.discard(process)
                process.end_process()
            process = _Process(self._name)
            self._all.add(process)
            return process


class _Process:
    """A process, and the pipe to it. Used by one thread at a time, except `kill`."""

    def __init__(self, name: str) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        # Not a daemon of multiprocessing, whose handlers could have no processes: `_close_at_exit` ends it.
        self._process = _SPAWN.Process(target=_serve, args=(theirs, _levels()), name=f"txmsg {name}", daemon=False)
        self._process.start()
        theirs.close()
        self._ended = _end_of(self.pid)

    def do(self, work: bytes) -> Exception | None:
        """Return the handler's exception in the process, or None. Raises EOFError and OSError when the process has
        ended."""
        self._pipe.send_bytes(work)
        while isinstance(said := pickle.loads(self._said()), dict):
            record = logging.makeLogRecord({name: _value_of(sent) for name, sent in said.items()})
            if (logger := logger_of_application(record.name)).isEnabledFor(record.levelno):
                logger.handle(record)
        raised, reason = said
        return None if raised is None else _error_of(raised, reason)

    def _said(self) -> bytes:
        """Return the process's next message. Raises EOFError and OSError when it has ended without one."""
        has_ended = False
        while not self._pipe.poll(0):
            if has_ended:
                raise EOFError
            wait([self._pipe, *self._ended], None if self._ended else _LOOK_S)
            has_ended = not self.is_alive()  # then it is looked for its last words
        return self._pipe.recv_bytes()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()

    def end_process(self) -> str:
        """Wait for its end, or kill it; return how it ended: "by SIGKILL", "with exit status 1"."""
        self._pipe.close()
        self._process.join(_END_S_MAX)
        self._process.kill()
        self._process.join()
        status = self._process.exitcode or 0
        self._process.close()
        for fd in self._ended:
            os.close(fd)
        self._ended = []
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"


def _end_of(pid: int) -> list[int]:
    """Return a descriptor that is readable when this process has ended; none if the system has no such thing."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):  # not Linux; a sandbox that does not let this through; or it has ended already
        return []


def _levels() -> dict[str, int]:
    """Return the levels of the loggers that have one."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    return {each.name: each.level for each in loggers if isinstance(each, logging.Logger) and each.level}


def _error_of(raised: bytes, reason: str) -> Exception:
    try:
        kind, args, state = pickle.loads(raised)
        error = _made_again(kind, args, state)
    except Exception:  # noqa: BLE001 - whatever its class does; its text is there
        error = RuntimeError(reason)
    return with_reason(error, reason)


def _made_again(kind: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    """Return an exception of another process.

    Not by pickle: it calls the class with `args`, which are those of `Exception.__init__`: RetryAfter, and classes of
    users whose parameters differ, would fail or come out different.
    """
    error = kind.__new__(kind, *args)
    if not inspect.isfunction(kind.__init__):
        kind.__init__(error, *args)  # a built-in one's: some keep their parts elsewhere
    error.args = args
    error.__dict__.update(state)
    return error


def _value_of(sent: object) -> object:
    """Return the value that `extra=` has given to a log record, or its text."""
    if not isinstance(sent, tuple):
        return sent
    pickled, text = sent
    try:
        return pickle.loads(pickled)
    except Exception:  # noqa: BLE001 - whatever its class does; a log must not break the work that it reports
        return text


# ---- in the child


def _serve(pipe: Connection, levels: dict[str, int]) -> None:
    # Ctrl-C, and SIGTERM to all processes of a unit of systemd, are for the parent: it lets handlers finish.
    leave_signals_to_parent()
    empty_stdin()
    os.set_inheritable(pipe.fileno(), False)  # it came that way, and os.system would pass it on
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    to_parent = _ToParent(pipe)
    logging.root.addHandler(to_parent)
    os.register_at_fork(after_in_child=functools.partial(_leave_in_copy, pipe, to_parent))
    for name, level in levels.items():
        logger_of_application(name).setLevel(level)
    while True:
        try:
            work = pipe.recv_bytes()
            to_parent.send_to_parent(_handled(work))
        except (EOFError, OSError):
            return


class _ToParent(logging.Handler):
    """Sends a child's log records to the parent, and between them the result of each message."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe
        self._sending = threading.Lock()  # threads of the handler may log, too

    def emit(self, record: logging.LogRecord) -> None:
        plain = copy.copy(record)
        try:
            plain.msg, plain.args = self.format(record), None
            plain.exc_info = plain.exc_text = plain.stack_info = None  # which the text has
            self.send_to_parent({name: _sent(value) for name, value in vars(plain).items()})
        except Exception:  # noqa: BLE001 - as logging does: it must not break the work that it reports
            self.handleError(record)

    def send_to_parent(self, said: dict[str, object] | tuple[bytes | None, str]) -> None:
        data = pickle.dumps(said)
        with self._sending:
            self._pipe.send_bytes(data)


def _sent(value: object) -> object:
    """Return a value of a record: plain, or pickled together with its text."""
    if type(value) in _PLAIN:  # as all are that logging itself gives; a subclass may be unknown to the parent
        return value
    try:
        return pickle.dumps(value), repr(value)
    except Exception:  # noqa: BLE001 - whatever its parts are, its text can go
        return b"", repr(value)


def _leave_in_copy(pipe: Connection, to_parent: _ToParent) -> None:
    """Close the pipe in a copy of this process, as multiprocessing makes them."""
    logging.root.removeHandler(to_parent)
    pipe.close()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    assert parent.pid is not None
    ended = _end_of(parent.pid)
    if os.getppid() == parent.pid:  # else it has ended already, and its number may be another one's
        # The other descriptor is a pipe of multiprocessing, which copies of the parent hold, too.
        wait([parent.sentinel, *ended])
    os._exit(3)


def _handled(work: bytes) -> tuple[bytes | None, str]:
    """Return the handler's exception, pickled, and the place where it was raised, as text."""
    try:
        reference, fields = pickle.loads(work)
        message = ReceivedMessage._make(fields)
        _handler(reference)(message._replace(headers=MappingProxyType(message.headers)))
    except Exception as exc:  # noqa: BLE001 - for the parent to judge
        reason = text_of(exc)
        return _sent_error(exc, reason), reason
    return None, ""


def _sent_error(exc: Exception, reason: str) -> bytes:
    """Return the pickled parts of an exception: its nearest class that the parent can import, `args` and attributes.

    So a Reject stays a Reject, wherever its class is and whatever it holds.
    """
    kind = next(each for each in type(exc).__mro__ if _goes(each))
    args = exc.args if _goes(exc.args) else (reason,)
    return pickle.dumps((kind, args, {name: value for name, value in vars(exc).items() if _goes(value)}))


def _goes(value: object) -> bool:
    """Return True if pickle can send the value to another process."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001 - it raises errors of several kinds, and those of a user's `__reduce__`
        return False
    return True


@functools.cache
def _handler(reference: _Reference) -> Callable[[ReceivedMessage], Any]:
    module, path, payload_types, overrides = reference
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return Injected(found, payload_types=payload_types, overrides=dict(overrides)).on_thread
