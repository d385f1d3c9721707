"""A MetaQ server put together: the one place that knows all of its parts."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path

from txmsg.errors import MisuseError
from txmsg.metaq.copy.copies import Copies
from txmsg.metaq.copy.follower import AGAIN, Follower, begin_if_new
from txmsg.metaq.group.files import set_zone
from txmsg.metaq.interface import NOTES, LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.remote.calls import RemoteServer as LeaderServer
from txmsg.metaq.server.appender import AppendExecutor
from txmsg.metaq.server.copy_api import CopyApi
from txmsg.metaq.server.disk import DiskWatch
from txmsg.metaq.server.figures import LogFigures, figures_of, unready
from txmsg.metaq.server.group_api import GroupApi
from txmsg.metaq.server.log_api import APPEND_SIZE_BYTES_MAX, LogApi
from txmsg.metaq.server.parts import MetaQParts
from txmsg.metaq.server.placement import Placer
from txmsg.metaq.server.polls import WaitingPolls
from txmsg.metaq.server.producers import REMEMBERED_S
from txmsg.metaq.server.readers import ReaderThreads
from txmsg.metaq.server.server_config import GO_ON, MetaQConfig
from txmsg.metaq.server.sessions import MemberSessions
from txmsg.metaq.server.users import UsersOfFile, UserSource
from txmsg.metaq.store.topics import Flush, TopicSettings
from txmsg.metrics.figures import Figures
from txmsg.metrics.http import Probes, serving
from txmsg.runtime.logs import EventLog
from txmsg.settings.live import GivenSettings
from txmsg.wire.access.denied import DeniedCalls
from txmsg.wire.address import UNIX, check_address
from txmsg.wire.handlers import Handlers
from txmsg.wire.listening import connections_allowed
from txmsg.wire.server import WireServer
from txmsg.wire.server_connection import ServerConnection
from txmsg.wire.shared import ConnectionLimits, Shared
from txmsg.wire.users import UsersOfBrokers
from txmsg.wire.v1 import metaq_rpc as rpc

_log = EventLog(__name__)

# A synchronous batch behind a note has the note synced, too. No file is kept for the notes in it.
_OF_NOTES = TopicSettings(flush=Flush.TIMED, retention_s=REMEMBERED_S)
_BEGIN_AGAIN_S = 1.0
_READERS = 4
_GROUP_THREADS = 8
_REQUEST_SIZE_BYTES_MAX = 4 * 1024 * 1024


async def serve(given: GivenSettings[MetaQConfig], on_ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Run a server until `stop` is set, then end in order: appends under way are carried out and answered.

    `on_ready` is called once with the address when it answers. Raises the errors of opening the log: StorageError when
    another process writes it, CorruptLog; MisuseError when the port is taken.
    """
    if not given.config.follow:
        await _serve_log(given, None, given.config.listen, on_ready, stop)
        return
    addresses: list[str] = []

    def ready(address: str) -> None:
        if not addresses:
            on_ready(address)
        addresses.append(address)

    while not stop.is_set():
        leader = LeaderServer(given.config.follow)
        try:
            await _begun(leader, given.config.data_dir, stop)
            listen = addresses[0] if addresses else given.config.listen
            if stop.is_set() or not await _serve_log(given, leader, listen, ready, stop):
                return
        finally:
            leader.close()


async def _begun(leader: LeaderServer, root: Path, stop: asyncio.Event) -> None:
    """Return when a copy has data, or `stop` is set. A leader that is unavailable is asked again."""
    told = ""
    while not stop.is_set():
        try:
            await asyncio.to_thread(begin_if_new, leader, root)
            return
        except AGAIN as exc:
            if told != str(exc):
                _log.warning("copy.not_begun", "the copy %(log)s is not begun: %(error)s", log=root, error=exc)
            told = str(exc)
        with suppress(TimeoutError):
            async with asyncio.timeout(_BEGIN_AGAIN_S):
                await stop.wait()


async def _serve_log(
    given: GivenSettings[MetaQConfig],
    leader: LeaderServer | None,
    listen: str,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
) -> bool:
    """Serve the log until `stop` is set, or a copy cannot continue.

    Returns True if it must be opened and served once more.
    """
    with ExitStack() as stack:
        # The log is closed last, when no thread uses it any more.
        opened = partial(
            LocalLog, given.config.data_dir, append=True, config=given.config.log, follows=leader is not None
        )
        log = await asyncio.to_thread(opened)
        stack.enter_context(closing(log))
        set_zone(given.config.data_dir, given.config.zone)
        threads = [
            stack.enter_context(ThreadPoolExecutor(count, thread_name_prefix=f"txmsg-metaq-{name}"))
            for name, count in (("append", 3), ("read", _READERS), ("group", _GROUP_THREADS), ("recall", 1))
        ]
        return await _serve(given, log, *threads, leader=leader, listen=listen, on_ready=on_ready, stopped=stop)


async def _serve(  # noqa: PLR0917 - all parts, and a pool of threads for each that may wait
    given: GivenSettings[MetaQConfig],
    log: LocalLog,
    appending: ThreadPoolExecutor,
    readers: ThreadPoolExecutor,
    group_threads: ThreadPoolExecutor,
    recalling: ThreadPoolExecutor,
    *,
    leader: LeaderServer | None,
    listen: str,
    on_ready: Callable[[str], None],
    stopped: asyncio.Event,
) -> bool:
    config = given.config
    if leader is None and log.settings_of(NOTES) != _OF_NOTES:
        log.set_topic(NOTES, _OF_NOTES)
    stop = asyncio.Event()  # set by `stopped`, and when a copy cannot continue
    polls = WaitingPolls()
    copies = Copies(
        config.copies.required, config.copies.timeout_s, goes_on=config.copies.missing == GO_ON, clock=time.monotonic
    )

    def appended(queues: Iterable[LogQueue]) -> None:
        polls.wake(queues)
        copy_api.wake()

    appender = AppendExecutor(
        partial(Placer, log),
        appending,
        size_bytes_max=config.appending_size_bytes_max,
        on_appended=appended,
        clock=time.monotonic,
    )
    if leader is None:
        # A copy has no appends of its own to remember: its leader answers repeats until it is promoted.
        await appender.recover()
    loop = asyncio.get_running_loop()

    def moved(grown: set[tuple[str, int]]) -> None:
        loop.call_soon_threadsafe(appended, {LogQueue(*queue) for queue in grown})

    log.writer.moving.on_moved = moved
    users = _users(config)
    shared = Shared[ServerConnection](
        connections_max=connections_allowed(config.connections_max),
        limits=ConnectionLimits(arriving_bytes=config.arriving_size_bytes_max),
        tls=config.tls.of_server(),
        guard=None if users is None else users.guard,
    )
    sessions = MemberSessions(group_threads, clock=time.monotonic)
    api = LogApi(
        log,
        appender,
        polls,
        sessions,
        ReaderThreads(readers, _READERS, clock=time.monotonic),
        recalling,
        config,
        stop,
        copies,
        tls=shared.tls,
    )
    copy_api = CopyApi(log, copies, readers, api.sending, config.send_timeout_s, stop)
    follower = None if leader is None else _follower(leader, log, config, polls, copy_api)
    server = WireServer(
        Handlers(
            {
                rpc.MetaQ: api,
                rpc.MetaQGroups: GroupApi(log, sessions, group_threads),
                rpc.MetaQCopies: copy_api,
            },
            request_size_bytes_max=_REQUEST_SIZE_BYTES_MAX,
            larger_requests={rpc.MetaQ.append.name: APPEND_SIZE_BYTES_MAX},
        ),
        shared,
    )
    figures = LogFigures(log, readers)
    parts = MetaQParts(given, log, appender, polls, sessions, users, api, copies, follower, shared, stop)
    given.use = parts.apply_settings
    probes = _probes(parts, figures)
    async with _listening(server, listen) as address:
        async with (
            serving(config.http_listen, probes, shared.tls, config.http_token_file),
            asyncio.TaskGroup() as tasks,
        ):
            of_users = [] if users is None else [users.run()]
            watching = [sessions.run(), figures.run(), DiskWatch(config.data_dir).run(), *of_users]
            ending = [tasks.create_task(each) for each in [*watching, _pass_on(stopped, stop)]]
            if follower is not None:
                tasks.create_task(_follow(follower, stop))
            await server.start()
            on_ready(address)
            await stop.wait()
            timeout_s = parts.config.stop_s
            _log.info("server.stopping", "stopping: calls under way have %(timeout_s)g s", timeout_s=timeout_s)
            polls.wake_all()
            copy_api.wake()
            if follower is not None:
                follower.close()
            # Calls end first, then what they began: every append that was accepted is carried out and answered.
            await server.stop(timeout_s)
            await appender.finished()
            for task in ending:
                task.cancel()
        await sessions.close()
    if follower is None:
        return False
    if follower.failure is not None:
        raise follower.failure
    return follower.begins_again


async def _pass_on(stopped: asyncio.Event, stop: asyncio.Event) -> None:
    await stopped.wait()
    stop.set()


def _follower(
    leader: LeaderServer, log: LocalLog, config: MetaQConfig, polls: WaitingPolls, copy_api: CopyApi
) -> Follower:
    loop = asyncio.get_running_loop()

    def came() -> None:
        polls.wake_all()
        copy_api.wake()

    name = config.copy_name or f"{socket.gethostname()}:{config.data_dir}"
    return Follower(leader, log, name=name, on_frames=lambda: loop.call_soon_threadsafe(came))


async def _follow(follower: Follower, stop: asyncio.Event) -> None:
    """Follow until closed, or until it cannot continue; then the server ends."""
    try:
        await asyncio.to_thread(follower.run)
    finally:
        stop.set()


def _users(config: MetaQConfig) -> UserSource | None:
    limits = config.user.limits()
    users: UserSource
    if config.access is not None:
        users = UsersOfFile(config.access, limits)
    elif config.access_from:
        users = UsersOfBrokers(config.access_addresses(), limits, age_s_max=config.access_age_s)
    else:
        return None
    users.guard.on_denied = DeniedCalls().add
    return users


def _probes(parts: MetaQParts, of_log: LogFigures) -> Probes:
    async def read() -> Figures:
        await of_log.refresh_if_old()
        return figures_of(parts, of_log)

    return Probes(figures=read, unready=partial(unready, parts))


@asynccontextmanager
async def _listening(server: WireServer, listen: str) -> AsyncIterator[str]:
    """Yield the address at which it will answer. Raises MisuseError when it is taken."""
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
    """Return True if a process listens at this socket; binding would take it over."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
