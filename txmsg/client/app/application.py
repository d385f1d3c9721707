"""`Txmsg`: the subscriptions, producers and hooks of a process, started and stopped together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from txmsg.checker.listener import CheckMessageListener
from txmsg.client.app.database import BusinessDatabase, DatabaseChoice
from txmsg.client.app.dependencies import Injected
from txmsg.client.app.described import Decorated, operations_of, payloads_by_name
from txmsg.client.app.hooks import Hook, entered, hook_of, hook_of_call
from txmsg.client.app.producers import AppProducers, K
from txmsg.client.app.receiving import AppReceiver, Sources, groups_of_log, receivers_of
from txmsg.client.app.router import Router, Subscription
from txmsg.client.app.sending import OnSend
from txmsg.client.app.transactions import Transactions
from txmsg.client.async_consumer import AsyncConsumer
from txmsg.client.async_producer import AsyncProducer
from txmsg.client.channel import Brokers
from txmsg.client.flows import joined, joined_async
from txmsg.client.flows.body import Key
from txmsg.client.flows.transaction import Transaction
from txmsg.client.outbox.options import WhenAway
from txmsg.client.producer import Producer
from txmsg.client.sending.schemas import register_schemas
from txmsg.client.transactional import Build, HalfTime, SessionDecorator, transactional_message
from txmsg.consumer.options import CLOSE_TIMEOUT_S, CLOSE_TIMEOUT_S_MAX
from txmsg.errors import MisuseError, shown
from txmsg.message import Message, MessageId
from txmsg.message.typed.asyncapi import asyncapi
from txmsg.message.typed.outgoing import outgoing
from txmsg.message.typed.registry import schema_of
from txmsg.message.typed.topic import Topic
from txmsg.message.typed.topic import name_of as name_of_topic
from txmsg.metrics.figures import Figures
from txmsg.runtime import loops
from txmsg.runtime.durations import Seconds, check_seconds
from txmsg.runtime.forks import renew_in_children
from txmsg.runtime.logs import EventLog
from txmsg.runtime.process import LoopThread, shared_loop
from txmsg.runtime.signals import stopped_by_signals
from txmsg.runtime.threads import DaemonThreads
from txmsg.runtime.user_function import check_takes, in_handler
from txmsg.wire.brokers import MEMORY, shards_of
from txmsg.wire.credential import TokenChoice, client_access
from txmsg.wire.tls import TlsChoice

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from txmsg.client.app.receiving import LogChoice
    from txmsg.message.encryption import Encryption
    from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
    from txmsg.tracing import Tracing

_log = EventLog(__name__)

S = TypeVar("S", bound=OnSend)
F = TypeVar("F", bound=Callable[[], Any])

_GRACE_S: Final = 60.0
"""Seconds beyond the time of its handlers that the end of an application may take: for hooks, and messages still to
send."""
_REGISTER_S_MAX: Final = 10.0

_RUNS_ALREADY: Final = "the application runs already: one start per process"


class Txmsg(Router):
    """An application: handlers that are declared with `subscribe`, here or in routers, and run together.

    `app.run()` runs it until SIGINT or SIGTERM; `txmsg worker MODULE:app` runs it in several processes. `async with
    app` runs it on the loop of another program, as in the lifespan of FastAPI; `with app` in a program without a loop.

    brokers: as for `Consumer`; or "memory:", where what it sends stays in this process until a test has it handled (see
    txmsg.testing.Memory), and nothing is read. log: what subscriptions with source="log" read: "HOST:PORT" of `txmsg
    metaq serve`, a directory, "kafka://HOST:PORT", or what `open_log` returned; default: the variable TXMSG_LOG. group:
    of subscriptions that name none, and of the messages that `transactional_message` sends. database: the Engine or
    AsyncEngine of the business database, or a sessionmaker or async_sessionmaker that is bound to one; txmsg's tables
    are created in it where they are missing. sends: topics that it sends to: their schemas are registered at each
    start, which fails if one is not compatible or no broker answers; its AsyncAPI document contains them.
    visibility_timeout_s: as for `Consumer`, of what brokers deliver. tls, token, tracing, encryption: as for
    `Consumer`, and for the log's server. close_timeout_s: how long handlers may take when it ends.

    Each subscription is a member of its group, and runs up to `concurrency` handlers at once. An application can be
    started again after it has ended. In a forked child it behaves as before its first start.
    """

    def __init__(
        self,
        brokers: str | Sequence[str | Sequence[str]] | None = None,
        *,
        log: LogChoice | None = None,
        group: str | None = None,
        database: DatabaseChoice | None = None,
        sends: Sequence[Topic[Any]] = (),
        visibility_timeout_s: Seconds = 60.0,
        close_timeout_s: Seconds = CLOSE_TIMEOUT_S,
        tls: TlsChoice = None,
        token: TokenChoice = None,
        tracing: Tracing | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        super().__init__(group=group)
        self.brokers = brokers
        """Brokers from the next start on; None: those of the environment. Tests may set it."""
        shards_of(self.brokers, takes_memory=True)
        if not (log is None or isinstance(log, str | os.PathLike) or hasattr(log, "fetch")):
            raise MisuseError(
                f"log={shown(log)} is not a log: give its address or directory, or what open_log returned"
            )
        self.log = log
        """The log from the next start on; None: the one that TXMSG_LOG names. Tests may set it."""
        for topic in sends:
            if not isinstance(topic, Topic):
                raise MisuseError(f"sends= of an application has {shown(topic)}: give objects made by Topic(...)")
        self.sends = tuple(sends)
        """The topics that it declares to send to."""
        self.close_timeout_s = check_seconds("close_timeout_s", close_timeout_s, least_s=0, most_s=CLOSE_TIMEOUT_S_MAX)
        """Seconds that handlers may take when it ends."""
        self.groups: Collection[str] = ()
        """Groups whose handlers run from the next start on; empty: all."""
        self.concurrency: int | None = None
        """Handlers at once of each subscription from the next start on; None: as the subscriptions say."""
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        """Replacements of functions of Depends from the next start on, by the function: for tests."""
        self._database = None if database is None else BusinessDatabase(database)
        self._transactions = Transactions(self._database, self._producer_of)
        self._options: dict[str, Any] = {"tls": tls, "token": token, "tracing": tracing}
        self._producers = AppProducers(lambda: self.brokers, self._options, encryption)
        self._visibility_timeout_s = visibility_timeout_s
        self._encryption = encryption
        self._hooks: list[Hook] = []
        self._decorated: list[Decorated] = []
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._running: AsyncExitStack | None = None
        """The contexts to be closed; None before the start and after the close."""
        self._receivers: list[AppReceiver] = []
        """Receivers of the last start, kept after the end for their counts."""
        self._starting: tuple[asyncio.Task[Any] | None, asyncio.Event] | None = None
        """The task that starts it, and an event that is set when the start is done."""
        self._is_closed_early = False
        """True if `close` was called during the start: the start closes it at its end."""
        self._closing: tuple[asyncio.Task[Any] | None, asyncio.Event] | None = None
        """The task that closes it, and an event that is set when the close is done."""
        self._closed_by_handler: asyncio.Task[Exception | None] | None = None
        """The task that closes it, or has closed it, because a handler asked for it."""
        self._thread: LoopThread | None = None
        self._stop: Callable[[], object] | None = None
        """Ends `run_async`, from any thread."""

    def _check_database(self, handler: Callable[..., Any], injected: Injected) -> None:
        self._transactions.checked_database(handler, injected)

    # ---- what it has

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """All subscriptions, with those of routers. Raises MisuseError for one without a group, and for duplicates."""
        found = self._subscriptions()
        seen: dict[str, list[Subscription]] = {}
        for each in found:
            if each.group is None:
                raise MisuseError(
                    f"the handler of {each.title} has no group: give @subscribe(..., group=...), or "
                    "group= to its Router or to Txmsg"
                )
            of_group = seen.setdefault(each.group, [])
            if twice := [topic for other in of_group for topic in each.topics if other.overlaps(topic)]:
                raise MisuseError(
                    f"group {each.group} has two handlers for topic {twice[0]!r}: give one of them a group of its own"
                )
            of_group.append(each)
        list(groups_of_log(found))
        return tuple(found)

    @property
    def topics(self) -> tuple[Topic[Any], ...]:
        """The typed topics that it sends to or subscribes to."""
        sent = [each.topic for each in self._decorated if isinstance(each.topic, Topic)]
        return tuple(
            dict.fromkeys([*self.sends, *sent, *(topic for each in self.subscriptions for topic in each.typed)])
        )

    def asyncapi(self, *, title: str, version: str) -> dict[str, Any]:
        """Return its AsyncAPI 3.0 document, for JSON: the messages that it sends and receives, with the schemas of
        payloads.

        It receives what its handlers subscribe to, and sends what `transactional_message` declares, and `sends=`: name
        there what `send` sends. title, version: of the application.
        """
        subscriptions = self.subscriptions
        return asyncapi(
            map(schema_of, self.topics),
            operations_of(self.sends, self._decorated, subscriptions),
            payloads_by_name(self._decorated, subscriptions),
            title=title,
            version=version,
        )

    def producer(
        self, group: str, *, check_listener: CheckMessageListener | None = None, timeout_s: Seconds = 10.0
    ) -> Producer:
        """Return a Producer for threads, which starts and closes with the application. Its messages pass through
        `on_send`."""
        return self._producers.make(Producer, group, check_listener=check_listener, timeout_s=timeout_s)

    def async_producer(
        self, group: str, *, check_listener: CheckMessageListener | None = None, timeout_s: Seconds = 10.0
    ) -> AsyncProducer:
        """Return an AsyncProducer, for coroutines on the loop on which the application is started."""
        return self._producers.make(AsyncProducer, group, check_listener=check_listener, timeout_s=timeout_s)

    def transactional_message(
        self,
        topic: str | Topic[Any],
        *,
        key: Key = None,
        ordering_key: Key = None,
        tag: str | None = None,
        message: Build = None,
        when_away: WhenAway = "raise",
        wait: bool = False,
        half: HalfTime = "first",
    ) -> SessionDecorator[Any]:
        """Decorate a function whose message is delivered if and only if its transaction in `database=` commits.

        The function's first parameter is a session, which callers leave out; it is `async def` where the database has
        an AsyncEngine, else `def`. It may be called before the application starts. The parameters are those of
        `txmsg.transactional_message`, and so are the errors of calls. Raises MisuseError for an application without
        `database=` or `group=`.
        """
        if callable(topic):
            raise MisuseError('@app.transactional_message is used without a topic: write it with ("topic")')
        producer = self._producer_of(f"@app.transactional_message({shown(name_of_topic(topic))})")
        database = self._database
        assert database is not None, "_producer_of has looked"
        decorate: Any = transactional_message(
            producer,
            topic=topic,
            key=key,
            ordering_key=ordering_key,
            tag=tag,
            session=database.session,
            message=message,
            when_away=when_away,
            wait=wait,
            half=half,
        )

        def decorated(function: Callable[..., Any]) -> Any:
            ready = database.ready_for(decorate(function))
            self._decorated.append(Decorated(topic, function, message is not None))
            return ready

        return decorated

    def send(
        self,
        message: Message | str | Topic[Any],
        value: object = ...,
        /,
        *,
        key: object = None,
        ordering_key: object = None,
        tag: str | None = None,
    ) -> MessageId:
        """Send a message, or a value for a topic, at once. Returns its id when it is on disk.

        The parameters are those of `Transaction.send`, which sends with a transaction; errors are those of
        `Producer.send`, InvalidMessage and MisuseError. It blocks: coroutines await `send_async`. The application need
        not run. Raises MisuseError for an application without `group=`.
        """
        if loops.is_running():
            raise MisuseError("app.send() blocks, and was called by a coroutine: write await app.send_async(...)")
        made = outgoing("app.send", message, value, key=key, ordering_key=ordering_key, tag=tag)
        producer = self._shared_producer(Producer, "app.send")
        if self._database is not None and not self._database.is_async:
            self._database.create_tables()
        return producer.send(made)

    async def send_async(
        self,
        message: Message | str | Topic[Any],
        value: object = ...,
        /,
        *,
        key: object = None,
        ordering_key: object = None,
        tag: str | None = None,
    ) -> MessageId:
        """Send a message, or a value for a topic, as `send`; for coroutines, on the loop on which the application
        runs."""
        made = outgoing("app.send_async", message, value, key=key, ordering_key=ordering_key, tag=tag)
        producer = self._shared_producer(AsyncProducer, "app.send_async")
        if self._database is not None and self._database.is_async:
            await self._database.create_tables_async()
        return await producer.send(made)

    def join(self, session: Session | AsyncSession) -> Transaction:
        """Return an object that sends messages with the session's transaction, which its owner begins and commits.

        `app.join(session).send(...)` buffers a message. The session's commit writes the fence row and stores the half
        messages before it, and tells brokers the outcome after it; a rollback sends nothing. It raises
        BrokerUnavailable, too, and may then be tried again. In one transaction each call returns the same object; call
        it outside savepoints. txmsg's tables have to be there: start the application before. Raises MisuseError for an
        application without `database=` or `group=`, for what is no session of its kind, and where another application
        has joined. Listeners to `before_commit` that are added to the session after the first call run after the
        message has left.
        """
        producer: Any = self._producer_of("app.join(session)")
        flow: Any = joined_async if isinstance(producer, AsyncProducer) else joined
        found: Transaction = flow.join(producer, session)
        return found

    def _producer_of(self, owner: str) -> Producer | AsyncProducer:
        """Return the producer for transactions of the database. owner: what needs it, for errors. Raises
        MisuseError."""
        if self._database is None or self.group is None:
            raise MisuseError(
                f"{owner} needs the database and the group of the application: write Txmsg(..., group=..., "
                "database=engine)"
            )
        if self._database.is_async:
            return self._shared_producer(AsyncProducer, owner)
        return self._shared_producer(Producer, owner)

    def _shared_producer(self, kind: type[K], owner: str) -> K:
        """Return the application's own producer. Raises MisuseError without a group."""
        if self.group is None:
            raise MisuseError(f"{owner} needs the group of the application: write Txmsg(..., group=...)")
        database = self._database
        has_fence = database is not None and database.is_async == (kind is AsyncProducer)
        return self._producers.shared(kind, self.group, database.listener if database and has_fence else lambda: None)

    def on_send(self, function: S) -> S:
        """Decorate a function that gets each message of its producers and returns the message to send instead.

        If it raises, the sender's call raises that exception, and nothing is sent. Called on any thread; it must not
        block.
        """
        check_takes("the function of @app.on_send", function, "message")
        self._producers.on_send.append(function)
        return function

    def on_startup(self, function: F) -> F:
        """Decorate a function, def or async def, that is called when it starts, before anything is received."""
        self._hooks.append(hook_of_call(function, "startup"))
        return function

    def on_shutdown(self, function: F) -> F:
        """Decorate a function, def or async def, that is called when it ends, after the last handler."""
        self._hooks.append(hook_of_call(function, "shutdown"))
        return function

    def lifespan(self, manager: Any) -> Any:
        """Decorate a function that yields once, def or async def: it is entered at the start, and exited at the end.

        Also takes a context manager, such as a connection pool. Hooks are entered in the order in which they are added,
        and exited in the opposite order; `def` hooks run on a separate thread.
        """
        self._hooks.append(hook_of(manager))
        return manager

    # ---- life

    async def start(self) -> Self:
        """Enter its hooks, start its producers, and begin to receive, on this loop.

        Does not wait for brokers that cannot be reached. Raises MisuseError for a group without a handler. If a hook or
        the handler of a first message closes it meanwhile, it has ended again when this returns.
        """
        if self._running is not None or self._starting is not None or self._closing is not None:
            raise MisuseError(_RUNS_ALREADY)
        chosen = self._chosen()
        self._starting = asyncio.current_task(), (ended := asyncio.Event())
        self._is_closed_early = False
        self._closed_by_handler = None
        try:
            self._running = await self._started(chosen)
        finally:
            self._starting = None
            ended.set()
        if self._is_closed_early:
            await self._close()
        return self

    async def _started(self, chosen: Sequence[Subscription]) -> AsyncExitStack:
        if self.concurrency is not None:
            chosen = [replace(each, concurrency=self.concurrency) for each in chosen]
        if self._database is not None and self.group is not None:
            self._producer_of("the application")  # answers checks from the start on, before any send
        receivers = (
            []
            if self._is_in_memory
            else receivers_of(chosen, self._sources(), self.dependency_overrides, self._transactions)
        )
        async with AsyncExitStack() as stack:
            threads = DaemonThreads(1, name="txmsg-hooks")
            stack.callback(threads.shutdown)
            self._producers.reopen()  # before the hooks, which may send
            stack.push_async_callback(self._producers.close, threads)
            for hook in self._hooks:
                await stack.enter_async_context(entered(hook(), threads))
            if self._database is not None:
                await self._database.create_tables_by(threads)
            for producer in self._producers.started(threads):  # after the tables of their listeners
                await stack.enter_async_context(producer)
            await self._register()
            for receiver in receivers:
                for handling in receiver.handlings:
                    stack.push_async_callback(handling.close)
            # Pushed before the consumers start, so that a start that fails halfway closes those that run. At the end
            # the stack unwinds from here: consumers, then their handlers, producers, and hooks.
            stack.push_async_callback(_close_all, [receiver.consumer for receiver in receivers])
            for receiver in receivers:
                await receiver.consumer.start()
            running = stack.pop_all()
        self._receivers = receivers
        return running

    @property
    def _loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop on which it runs if it was started by `with`; for tests, which call its handlers."""
        return None if self._running is None or self._thread is None else self._thread.loop

    @property
    def _is_in_memory(self) -> bool:
        return shards_of(self.brokers, takes_memory=True) == [[MEMORY]]

    async def _register(self) -> None:
        if not self.sends or self._is_in_memory:
            return
        access = client_access(self._options["tls"], self._options["token"])
        shards = [Brokers(addresses, **access) for addresses in shards_of(self.brokers)]
        try:
            await register_schemas(shards, self.sends, timeout_s=_REGISTER_S_MAX)
        finally:
            await asyncio.gather(*(brokers.close() for brokers in shards))

    def _chosen(self) -> list[Subscription]:
        """Return the subscriptions of its `groups`. Raises MisuseError for a group without a handler."""
        there = sorted({each.group for each in self.subscriptions if each.group is not None})
        if unknown := sorted(set(self.groups) - set(there)):
            raise MisuseError(f"no handler is of group {unknown[0]!r}: there are {', '.join(there) or 'none'}")
        return [each for each in self.subscriptions if not self.groups or each.group in self.groups]

    def _sources(self) -> Sources:
        return Sources(
            brokers=self.brokers,
            log=self.log,
            visibility_timeout_s=self._visibility_timeout_s,
            close_timeout_s=self.close_timeout_s,
            encryption=self._encryption,
            **self._options,
        )

    async def close(self) -> None:
        """Stop receiving, let handlers finish for up to close_timeout_s, send waiting messages, and exit the hooks.

        Call it on the loop on which it was started. Closing twice, or before a start, is fine; during the start, the
        start completes and then closes it. Called by a handler, it begins to close and returns at once, and `run` ends;
        exceptions of hooks are then logged, and raised by the next call that does not come from a handler.
        """
        self.stop()
        if in_handler.get():
            if self._stop is None and self._closed_by_handler is None:  # else `run` closes
                self._closed_by_handler = asyncio.create_task(self._close_for_handler(), name="txmsg-close-application")
            return
        await self._close()
        by_handler = self._closed_by_handler
        if by_handler is None or by_handler is asyncio.current_task():  # then a hook calls
            return
        self._closed_by_handler = None
        if (error := await asyncio.shield(by_handler)) is not None:
            raise error

    async def _close_for_handler(self) -> Exception | None:
        """Close, and return the exception for the application's owner: a handler's call is not awaited by anyone."""
        try:
            await self._close()
        except Exception as exc:  # noqa: BLE001 - the root of a task; the user's hooks
            _log.exception("app.close_failed", "closing the application, as a handler asked for, failed")
            return exc
        return None

    async def _close(self) -> None:
        """Close in the caller's task, which has entered the hooks: context that they set has to be left in the same
        task."""
        in_handler.set(False)  # of this task: if a handler began it, it waits for that one, too
        if self._starting is not None:
            task, started = self._starting
            self._is_closed_early = self._stop is None  # else `run` closes
            if task is asyncio.current_task():  # a hook calls
                return
            await started.wait()
        if self._closing is not None:
            task, ended = self._closing
            if task is not asyncio.current_task():  # else a hook calls
                await ended.wait()
            return
        running, self._running = self._running, None
        if running is None:
            return
        self._closing = asyncio.current_task(), (ended := asyncio.Event())
        try:
            await running.aclose()
        finally:
            self._closing = None
            ended.set()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        self._thread = shared_loop()
        self._thread.call(self.start())
        self._thread.at_exit(self, self.close)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._thread.at_exit(self, None)
        self._thread.call(self.close(), timeout_s=self.close_timeout_s + _GRACE_S)

    def run(self) -> None:
        """Run it until `stop` is called, or until SIGINT or SIGTERM. A second signal has its previous effect."""
        loops.run_application(self.run_async())

    async def run_async(self, *, started: Callable[[], object] | None = None) -> None:
        """Run it as `run`, on this loop. Cancelling it closes, too. started: called when it has started. Raises
        MisuseError."""
        if self._stop is not None:
            raise MisuseError(_RUNS_ALREADY)
        if self._is_in_memory:
            raise MisuseError(
                f"an application with {MEMORY!r} receives nothing by itself: start a broker (`txmsg up`) and name it, "
                "or have a test call txmsg.testing.Memory().deliver(app)"
            )
        stop_wanted = asyncio.Event()
        self._stop = stop = partial(asyncio.get_running_loop().call_soon_threadsafe, stop_wanted.set)
        try:
            with stopped_by_signals(stop):
                await self._run_until(stop_wanted, started)
        finally:
            self._stop = None

    async def _run_until(self, stop_wanted: asyncio.Event, started: Callable[[], object] | None) -> None:
        await self.start()
        try:
            if started is not None:
                started()
            await stop_wanted.wait()
        finally:
            await self.close()

    def stop(self) -> None:
        """End `run`. Returns at once. May be called anywhere, also by a handler, and by a hook during the start."""
        if (stop := self._stop) is not None:
            stop()

    # ---- while it runs

    def pause(self, group: str) -> None:
        """Stop receiving for a group in this process until `resume`. Received messages are still handled.

        Returns at once; may be called anywhere. `stop_group` stops a group in all processes.
        """
        for consumer in self._consumers_of(group):
            consumer.pause()

    def resume(self, group: str) -> None:
        """End `pause`."""
        for consumer in self._consumers_of(group):
            consumer.resume()

    async def stop_group(self, group: str) -> None:
        """Stop delivery to a group in all processes, until `start_group`; as `txmsg group stop` does.

        Received messages are still handled; of a log, those whose handlers run. Brokers stop within two seconds, a log
        within one. The application's user must be allowed to administer the group. Call it on the loop on which it was
        started. Errors as for `AsyncConsumer.stop_group`; MisuseError for a group of a log in Kafka.
        """
        for consumer in self._one_of_each_source(group):
            await consumer.stop_group()

    async def start_group(self, group: str) -> None:
        """End `stop_group`, or `txmsg group stop`."""
        for consumer in self._one_of_each_source(group):
            await consumer.start_group()

    def _one_of_each_source(self, group: str) -> Iterable[AsyncConsumer | AsyncPushConsumer]:
        """Return one of its consumers at brokers, and that of the log: for calls that affect all members."""
        return {type(each): each for each in self._consumers_of(group)}.values()

    def _consumers_of(self, group: str) -> list[AsyncConsumer | AsyncPushConsumer]:
        if self._running is None:
            raise MisuseError("the application does not run: start it first")
        found = [receiver.consumer for receiver in self._receivers if receiver.group == group]
        if not found:
            there = ", ".join(sorted({receiver.group for receiver in self._receivers})) or "none"
            raise MisuseError(f"no handler that runs here is of group {group!r}: there are {there}")
        return found

    def _put_figures(self, figures: Figures) -> None:
        """Add the figures of its producers, and of the consumers of its last start; for
        `txmsg.metrics.ClientCollector`."""
        for producer in self._producers:
            producer._put_figures(figures)
        for receiver in self._receivers:
            receiver.consumer._put_figures(figures)


async def _close_all(consumers: Sequence[AsyncConsumer | AsyncPushConsumer]) -> None:
    """Close all consumers at the same time: their waiting times do not add up."""
    closing: list[Awaitable[None]] = [consumer.close() for consumer in consumers]
    # All are closed before an error is raised: otherwise one failing consumer would leave the others running.
    ends = await asyncio.gather(*closing, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
