"""A MetaQ server put together: the one place that knows all of its parts."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from txmsg.errors import MisuseError
from txmsg.logs import EventLog, set_log_level
from txmsg.metaq.access import NOTES
from txmsg.metaq.format.frame import FRAME_SIZE_BYTES_MAX
from txmsg.metaq.local import LocalLog
from txmsg.metaq.server.appender import Appender
from txmsg.metaq.server.config import MetaQConfig
from txmsg.metaq.server.figures import LogFigures, figures_of, unready
from txmsg.metaq.server.group_api import GroupApi
from txmsg.metaq.server.log_api import LogApi, Polls
from txmsg.metaq.server.placement import Placer
from txmsg.metaq.server.producers import REMEMBERED_S
from txmsg.metaq.server.sessions import Sessions
from txmsg.metaq.server.users import UsersOfBrokers, UsersOfFile, UserSource
from txmsg.metaq.store.topics import Flush, TopicSettings
from txmsg.metrics.figures import Figures
from txmsg.metrics.http import Probes, serving
from txmsg.settings.live import Given
from txmsg.wire.address import UNIX, check_address
from txmsg.wire.listening import connections_allowed
from txmsg.wire.server import Server
from txmsg.wire.server_connection import Limits
from txmsg.wire.v1 import metaq_rpc as rpc

_log = EventLog(__name__)

# A synchronous batch behind a note has the note synced, too. No file is kept for the notes in it.
_OF_NOTES = TopicSettings(flush=Flush.TIMED, retention_s=REMEMBERED_S)
_READERS = 4
_GROUP_THREADS = 8
_REQUEST_SIZE_BYTES_MAX = 4 * 1024 * 1024
_APPEND_SIZE_BYTES_MAX = FRAME_SIZE_BYTES_MAX + 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Parts:
    """What a server consists of, to be looked at."""

    given: Given[MetaQConfig]
    log: LocalLog
    appender: Appender
    polls: Polls
    sessions: Sessions
    users: UserSource | None
    api: LogApi
    server: Server
    stop: asyncio.Event

    @property
    def config(self) -> MetaQConfig:
        """What holds now."""
        return self.given.config

    def use(self, config: MetaQConfig) -> None:
        """Takes the live settings of a configuration."""
        set_log_level(config.log_level)
        self.log.use(config.log)
        if self.users is not None:
            self.users.guard.use_limits(config.user.limits())


async def serve(given: Given[MetaQConfig], on_ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Runs a server until `stop` is set, then ends in order: appends under way are carried out and answered.

    `on_ready` is called once with the address when it answers. Raises what opening the log raises: StorageError when
    another process writes it, CorruptLog; MisuseError when the port is taken.
    """
    with ExitStack() as stack:
        # The log is closed last, when no thread uses it any more.
        log = await asyncio.to_thread(LocalLog, given.config.data_dir, append=True, config=given.config.log)
        stack.enter_context(closing(log))
        threads = [
            stack.enter_context(ThreadPoolExecutor(count, thread_name_prefix=f"txmsg-metaq-{name}"))
            for name, count in (("append", 3), ("read", _READERS), ("group", _GROUP_THREADS))
        ]
        await _serve(given, log, *threads, on_ready=on_ready, stop=stop)


async def _serve(
    given: Given[MetaQConfig],
    log: LocalLog,
    appending: ThreadPoolExecutor,
    readers: ThreadPoolExecutor,
    group_threads: ThreadPoolExecutor,
    *,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    config = given.config
    if log.settings_of(NOTES) != _OF_NOTES:
        log.set_topic(NOTES, _OF_NOTES)
    polls = Polls()
    appender = Appender(
        partial(Placer, log),
        appending,
        size_bytes_max=config.appending_size_bytes_max,
        on_appended=polls.wake,
        clock=time.monotonic,
    )
    await appender.recover()
    users = _users(config)
    sessions = Sessions(group_threads, clock=time.monotonic)
    api = LogApi(log, appender, polls, sessions, readers, config, stop)
    server = Server(
        {
            rpc.MetaQ: api,
            rpc.MetaQGroups: GroupApi(log, sessions, group_threads),
        },
        connections_max=connections_allowed(config.connections_max),
        request_size_bytes_max=_REQUEST_SIZE_BYTES_MAX,
        larger_requests={rpc.MetaQ.append.name: _APPEND_SIZE_BYTES_MAX},
        limits=Limits(arriving_bytes=config.arriving_size_bytes_max),
        tls=config.tls.of_server(),
        guard=None if users is None else users.guard,
    )
    figures = LogFigures(log, readers)
    parts = Parts(given, log, appender, polls, sessions, users, api, server, stop)
    given.use = parts.use
    probes = _probes(parts, figures)
    async with _listening(server, config.listen) as address:
        async with (
            serving(config.http_listen, probes, server.tls, config.http_token_file),
            asyncio.TaskGroup() as tasks,
        ):
            ending = [tasks.create_task(sessions.run()), tasks.create_task(figures.run())]
            if users is not None:
                ending.append(tasks.create_task(users.run()))
            await server.start()
            on_ready(address)
            await stop.wait()
            timeout_s = parts.config.stop_s
            _log.info("server.stopping", "stopping: calls under way have %(timeout_s)g s", timeout_s=timeout_s)
            polls.wake_all()
            await server.stop(timeout_s)
            await appender.finished()
            for task in ending:
                task.cancel()
        await sessions.close()


def _users(config: MetaQConfig) -> UserSource | None:
    limits = config.user.limits()
    if config.access is not None:
        return UsersOfFile(config.access, limits)
    if config.access_from:
        return UsersOfBrokers(config.access_addresses(), limits, age_s_max=config.access_age_s)
    return None


def _probes(parts: Parts, of_log: LogFigures) -> Probes:
    async def read() -> Figures:
        await of_log.look()
        return figures_of(parts, of_log)

    return Probes(figures=read, unready=partial(unready, parts))


@asynccontextmanager
async def _listening(server: Server, listen: str) -> AsyncIterator[str]:
    """The address at which it will answer. Raises MisuseError when it is taken."""
    if not listen.startswith(UNIX):
        yield await server.bind(check_address("--listen", listen))
        return
    path = Path(listen.removeprefix(UNIX))
    if _is_answered(path):
        raise MisuseError(f"cannot listen on {listen}: another program does; give another --listen unix:PATH")
    try:
        yield await server.bind(listen)
    finally:
        path.unlink(missing_ok=True)


def _is_answered(path: Path) -> bool:
    """Whether a process listens at this socket; binding would take it over."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
