"""The consumer for asyncio, which the sync one runs, too: polls every broker and hands the messages to handlers.

Delivery is at least once: a handler that must not repeat its effects is wrapped in `idempotent`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from txmsg.administration.groups import GroupChange, GroupsService
from txmsg.client.attach import AttachedStreams
from txmsg.client.channel import Brokers, knock
from txmsg.client.hooks import ConsumerHooks
from txmsg.client.receiving.arrivals import Arrival
from txmsg.client.receiving.delivery import MessageDelivery
from txmsg.client.receiving.fetch_budget import OUT_SIZE_BYTES_MAX, FetchBounds
from txmsg.client.receiving.link import Link
from txmsg.client.receiving.links import Links
from txmsg.client.receiving.member import ConsumerMember
from txmsg.client.receiving.shard import Shard
from txmsg.client.receiving.suspects import SuspectHandler
from txmsg.client.steering import follow
from txmsg.consumer.counts import ConsumerCounts
from txmsg.consumer.failures import HandlerFailure
from txmsg.consumer.lifecycle import WithHandlers
from txmsg.consumer.options import CLOSE_TIMEOUT_S, CONCURRENCY, ConsumerOptions, check_count
from txmsg.consumer.workers import Workers
from txmsg.errors import InvalidMessage, MisuseError, TxmsgError, shown
from txmsg.metrics.figures import Figures
from txmsg.runtime.durations import Seconds, check_seconds
from txmsg.runtime.logs import EventLog
from txmsg.settings.clients import (
    PREFETCH_BYTES_MAX,
    VISIBILITY_TIMEOUT_S_MAX,
    VISIBILITY_TIMEOUT_S_MIN,
    ClientConfig,
)
from txmsg.wire.brokers import shards_of
from txmsg.wire.codec import SUSPECT_FROM
from txmsg.wire.credential import TokenChoice, client_access
from txmsg.wire.start import Start, start_to_wire
from txmsg.wire.tls import TlsChoice
from txmsg.wire.v1.txmsg_pb2 import Subscription

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption
    from txmsg.tracing import Tracing

_log = EventLog(__name__)

WATCH_INTERVAL_S_MAX = 5.0
_ALTER_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _ShardLinks:
    """The links to the brokers of one Notify database."""

    brokers: Brokers
    links: Links
    presence: asyncio.Task[None]


class AsyncConsumer(WithHandlers):
    """A member of a consumer group. Each message of its topics goes to one member that is free.

    brokers: "host:port", several of them in a list or separated by commas; brokers of several Notify databases are
    separated by semicolons, or are a list of such lists; default: the variable TXMSG_BROKERS, or else localhost:7700.
    group: the consumer group.
    concurrency: the number of handlers that run at once, for `def` and for `async def` handlers each; `def` handlers
    run on threads, `async def` ones on the loop. `txmsg config set client.concurrency@GROUP NUMBER` changes it at run
    time; the same holds for visibility_timeout_s and prefetch_bytes.
    visibility_timeout_s: time without contact to this process after which its messages are redelivered to others. A
    handler may take longer: its message stays with it while the process lives, up to 12 hours.
    close_timeout_s: how long `close` waits for handlers.
    prefetch_bytes: total size of bodies that are fetched ahead; one message may exceed it. Per broker, twice
    `concurrency` messages are fetched ahead, or as many as the handlers process in a fifth of a second.

    start: where a group that is new to a topic begins: `Start.earliest()` (the default), `Start.latest()` or
    `Start.at(time)`. An existing group continues where it was.
    broadcast: every member gets every message. True for a process that starts fresh each time; the name of an
    instance ("host-1") for one that continues where it was. The member is its own group, GROUP%INSTANCE, which begins
    at the latest message and is deleted a day after its last use.
    tls: True to verify the brokers' certificates with the CAs that the system trusts, the path of a file with CAs
    (PEM), or an ssl.SSLContext; False for no TLS. Default: TXMSG_TLS_CA in the environment.
    token: of a user, if brokers require authentication: a token, the pathlib.Path of a file with one, or a function
    that returns one; read again at each connection. Default: TXMSG_TOKEN_FILE or TXMSG_TOKEN in the environment.
    hooks: for tests, which can also set them later.
    tracing: with `txmsg.tracing.Tracing()`, OpenTelemetry traces the handlers.
    encryption: decrypts bodies for the handlers, such as `txmsg.message.encryption.AesGcm`.

    A handler that returns acknowledges the message. One that raises refuses it: it is retried after the group's
    back-off, and becomes a dead letter, with the error's text, when its retries are used up.
    """

    def __init__(
        self,
        brokers: str | Sequence[str | Sequence[str]] | None = None,
        *,
        group: str,
        concurrency: int = CONCURRENCY,
        visibility_timeout_s: Seconds = 60.0,
        close_timeout_s: Seconds = CLOSE_TIMEOUT_S,
        prefetch_bytes: int = OUT_SIZE_BYTES_MAX,
        start: Start | None = None,
        broadcast: bool | str = False,
        tls: TlsChoice = None,
        token: TokenChoice = None,
        hooks: ConsumerHooks | None = None,
        tracing: Tracing | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        options = ConsumerOptions(
            concurrency=concurrency,
            close_timeout_s=close_timeout_s,
            start=start,
            broadcast=broadcast,
            tls=tls,
            token=token,
            tracing=tracing,
            encryption=encryption,
        )
        super().__init__(group, options)
        self._addresses = shards_of(brokers)
        self._access = client_access(tls, token)
        self._visibility_timeout_s = check_seconds(
            "visibility_timeout_s",
            visibility_timeout_s,
            least_s=VISIBILITY_TIMEOUT_S_MIN,
            most_s=VISIBILITY_TIMEOUT_S_MAX,
        )
        self._prefetch_bytes = check_count("prefetch_bytes", prefetch_bytes, most=PREFETCH_BYTES_MAX)
        self._made_with = self._concurrency, self._prefetch_bytes, self._visibility_timeout_s
        self.hooks = hooks or ConsumerHooks()

    def _begin(self) -> None:
        super()._begin()
        self._shards: list[_ShardLinks] = []
        self._counts = ConsumerCounts()
        self._running: Callable[[], Sequence[MessageDelivery]] = list
        """Returns the deliveries that are being handled."""
        self._is_paused = False
        self._blocked_at = -math.inf

    def _put_figures(self, figures: Figures) -> None:
        """Add its figures; for `txmsg.metrics.ClientCollector`."""
        self._counts.put_figures(figures, self.group, held=sum(shard.links.out() for shard in self._shards))
        self._subscriptions.put_figures(figures, (delivery.handler for delivery in self._running()))

    # ---- life

    async def _knock(self) -> None:
        await asyncio.gather(*(knock(Brokers(addresses, **self._access)) for addresses in self._addresses))

    async def _open(self) -> None:
        self._set(ClientConfig())  # after a fork others may hold than when it was made
        self._workers = Workers[MessageDelivery](
            self._concurrency,
            name=f"txmsg-{self.group}",
            before=lambda message: self.hooks.before_handler(message),  # noqa: PLW0108 - tests may set it later
            blocked=self._note_blocked,
        )
        self._running = self._workers.running
        self._suspects = SuspectHandler(self._workers, self.group)
        self._isolating = asyncio.create_task(self._suspects.run(), name=f"txmsg-suspects-{self.group}")
        member = ConsumerMember(
            group=self.group,
            client_id=uuid4().hex,
            subscriptions=tuple(Subscription(topic=topic, tags=tag) for topic, tag in self._subscriptions.tags.items()),
            start=start_to_wire(self._start),
            counts=self._counts,
        )
        self._shards = [self._at_shard(addresses, member) for addresses in self._addresses]
        self._steering = asyncio.create_task(
            follow(self._shards[0].brokers, self.group, self._apply_settings), name=f"txmsg-settings-{self.group}"
        )
        self._watching = asyncio.create_task(self._watch())

    def _at_shard(self, addresses: Sequence[str], member: ConsumerMember) -> _ShardLinks:
        brokers = Brokers(addresses, **self._access)
        shard = Shard(brokers)

        def new_link(address: str) -> Link:
            link = Link(shard, address, member, self._bounds(), self._hand_to_workers)
            if self._is_paused:
                link.pause()
            return link

        links = Links(brokers, new_link, group=self.group)
        presence = AttachedStreams(brokers, client_id=member.client_id, consumer_group=self.group)
        return _ShardLinks(brokers, links, asyncio.create_task(presence.run(), name=f"txmsg-attach-{self.group}"))

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(self.close_timeout_s):
                await asyncio.gather(*(shard.links.stop() for shard in self._shards))
        except TimeoutError:
            _log.warning(
                "consumer.closed_early",
                "group %(group)s: handlers still ran after %(timeout_s)s s; their messages are redelivered",
                group=self.group,
                timeout_s=self.close_timeout_s,
            )
        tasks = [self._watching, self._steering, *(shard.presence for shard in self._shards)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(shard.links.close() for shard in self._shards), *tasks, return_exceptions=True)
        await self._workers.close()
        self._isolating.cancel()  # not before: what waits for a suspect to end would begin
        await asyncio.wait([self._isolating])
        await asyncio.gather(*(shard.links.flush() for shard in self._shards))
        await asyncio.gather(*(shard.brokers.close() for shard in self._shards))

    def _apply_settings(self, config: ClientConfig) -> None:
        """Apply settings that an operator has changed in the first Notify database."""
        self._set(config)
        self._workers.resize(self._concurrency)
        for shard in self._shards:
            shard.links.apply_bounds(self._bounds())
        _log.info(
            "consumer.settings_taken",
            "group %(group)s: up to %(concurrency)d handlers run at once now, prefetch_bytes is %(prefetch_bytes)d, "
            "visibility_timeout_s %(visibility_timeout_s)g",
            group=self.group,
            concurrency=self._concurrency,
            prefetch_bytes=self._prefetch_bytes,
            visibility_timeout_s=self._visibility_timeout_s,
        )

    def _set(self, config: ClientConfig) -> None:
        concurrency, prefetch_bytes, visibility_timeout_s = self._made_with
        self._concurrency = config.concurrency or concurrency
        self._prefetch_bytes = config.prefetch_bytes or prefetch_bytes
        self._visibility_timeout_s = config.visibility_timeout_s or visibility_timeout_s

    def _bounds(self) -> FetchBounds:
        return FetchBounds(
            out_min=2 * self._concurrency,
            out_size_bytes_max=self._prefetch_bytes,
            visibility_timeout_s=self._visibility_timeout_s,
        )

    def pause(self) -> None:
        """Stop receiving until `resume`; received messages are still handled. Returns at once. From any thread.

        Other members of the group continue; `stop_group` stops them all.
        """
        self._pause_or_resume(True)

    def resume(self) -> None:
        """End `pause`."""
        self._pause_or_resume(False)

    async def stop_group(self) -> None:
        """Stop delivery to its group, in all processes, until `start_group`; as `txmsg group stop` does.

        Received messages are still handled. Brokers stop within two seconds. The user must be allowed to administer the
        group. Raises MisuseError before `start`, and the errors of a call. With several Notify databases, all are
        called, and the error names those that failed. Idempotent.
        """
        await self._alter_group(stopped=True)

    async def start_group(self) -> None:
        """End `stop_group`, or `txmsg group stop`."""
        await self._alter_group(stopped=False)

    async def _alter_group(self, *, stopped: bool) -> None:
        if self._loop is None or self._closing is not None:
            raise MisuseError(f"the consumer of group {self.group} does not run: start it first")
        request = GroupChange(group=self.group, stopped=stopped)
        calls = [shard.brokers.call(GroupsService.alter, request, timeout_s=_ALTER_TIMEOUT_S) for shard in self._shards]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        failed = {i: end for i, end in enumerate(ends) if isinstance(end, BaseException)}
        for error in failed.values():
            if len(ends) == 1 or not isinstance(error, TxmsgError):
                raise error
            where = "; ".join(f"of {', '.join(self._addresses[i])}: {why}" for i, why in failed.items())
            raise type(error)(
                f"group {self.group} is not {'stopped' if stopped else 'started'} in {len(failed)} of {len(ends)} "
                f"Notify databases, {where}; the others have done it, and a repeat does no harm"
            ) from error

    def _pause_or_resume(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        if self._loop is not None and self._closing is None:
            self._loop.call_soon_threadsafe(self._tell_links)

    def _tell_links(self) -> None:
        for shard in self._shards:
            if self._is_paused:
                shard.links.pause()
            else:
                shard.links.resume()

    # ---- work

    def _hand_to_workers(self, arrival: Arrival) -> None:
        """Hand messages that were delivered together to the workers of their handler."""
        topic = arrival.messages[0].topic
        handler = self._subscriptions.handler_of(topic)
        if handler is None:  # no broker delivers what was not subscribed to
            error = InvalidMessage(f"group {self.group} has no handler for topic {shown(topic)}")
            _log.error("consumer.topic_unasked", "%(error)s", error=error, group=self.group, topic=topic)
            for message in arrival.messages:
                assert message.offset is not None
                arrival.deliveries.refuse(arrival.hand, message.offset, HandlerFailure(str(error)))
            return
        late_at = asyncio.get_running_loop().time() + self._visibility_timeout_s
        deliveries = [
            MessageDelivery(arrival.deliveries, arrival.hand, message, handler, late_at) for message in arrival.messages
        ]
        if arrival.losses < SUSPECT_FROM:
            self._workers.put_runs(deliveries)
            return
        for delivery in deliveries:
            self._suspects.put_message(delivery, arrival.losses)

    def _note_blocked(self, delivery: MessageDelivery, time_s: float) -> None:
        """Note that a handler has blocked the loop, and with it the reports to brokers that this process lives."""
        if time_s < self._visibility_timeout_s / 2:
            return
        self._blocked_at = asyncio.get_running_loop().time()
        _log.warning(
            "handler.blocked_loop",
            "group %(group)s: the handler of topic %(topic)r blocked the event loop for %(blocked_s).1f s with message "
            "%(message_id)s. Brokers did not hear of this process meanwhile, and redeliver all that it has to others "
            "after visibility_timeout_s=%(visibility_timeout_s)g: write the handler as def, for a thread, "
            "or call what blocks by asyncio.to_thread",
            group=self.group,
            topic=delivery.handler.topic,
            message_id=delivery.message.id,
            blocked_s=time_s,
            visibility_timeout_s=self._visibility_timeout_s,
        )

    async def _watch(self) -> None:
        """Log each handler that takes too long or hangs: nothing else would show it."""
        loop = asyncio.get_running_loop()
        told: list[MessageDelivery] = []
        while True:
            began_at, time_s = loop.time(), min(self._visibility_timeout_s / 4, WATCH_INTERVAL_S_MAX)
            await asyncio.sleep(time_s)
            late_s = loop.time() - began_at - time_s
            if late_s >= self._visibility_timeout_s / 2 and self._blocked_at < began_at:
                _log.warning(
                    "consumer.loop_blocked",
                    "group %(group)s: its event loop did not run for %(blocked_s).1f s, and no handler of it was the "
                    "reason: messages are redelivered when brokers do not hear of this process for "
                    "visibility_timeout_s=%(visibility_timeout_s)g. Find what blocks the loop (PYTHONASYNCIODEBUG=1 "
                    "logs it), or whether this process was stopped",
                    group=self.group,
                    blocked_s=late_s,
                    visibility_timeout_s=self._visibility_timeout_s,
                )
            self._workers.revive()
            late = [delivery for delivery in self._workers.running() if delivery.late_at <= loop.time()]
            for delivery in late:
                if delivery not in told:
                    _log.warning(
                        "handler.late",
                        "group %(group)s: handler of topic %(topic)r has held message %(message_id)s for longer than "
                        "visibility_timeout_s=%(visibility_timeout_s)g: others do not get it while this process "
                        "lives, for up to 12 hours. %(late)d handlers are late (concurrency=%(concurrency)d); one "
                        "that hangs is never ended: give its calls timeouts",
                        group=self.group,
                        topic=delivery.handler.topic,
                        message_id=delivery.message.id,
                        visibility_timeout_s=self._visibility_timeout_s,
                        late=len(late),
                        concurrency=self._concurrency,
                    )
            told = late
