"""The consumers of an application: at brokers one for each subscription, of the log one for each group.

Members of a group of a log share its retries, of whatever topic they are: one member has all handlers of its group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from txmsg.client.app.dependencies import Overrides
from txmsg.client.app.handling import Handling
from txmsg.client.app.router import Subscription
from txmsg.client.app.transactions import Transactions
from txmsg.client.async_consumer import AsyncConsumer
from txmsg.consumer.options import ConsumerOptions
from txmsg.errors import MisuseError, shown
from txmsg.metaq.consumer.options import LOG_VARIABLE
from txmsg.runtime.durations import Seconds
from txmsg.runtime.extras import lacking
from txmsg.settings.clients import CONCURRENCY_MAX
from txmsg.wire.credential import TokenChoice
from txmsg.wire.tls import TlsChoice

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption
    from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
    from txmsg.metaq.interface import LogAccess
    from txmsg.tracing import Tracing

    LogChoice: TypeAlias = str | os.PathLike[str] | LogAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources that an application reads, and options of all its consumers."""

    brokers: str | Sequence[str | Sequence[str]] | None
    log: LogChoice | None
    visibility_timeout_s: Seconds
    close_timeout_s: float
    tls: TlsChoice
    token: TokenChoice
    tracing: Tracing | None
    encryption: Encryption | None

    @property
    def in_common(self) -> dict[str, Any]:
        """Options that consumers of both sources take."""
        return {
            "close_timeout_s": self.close_timeout_s,
            "tls": self.tls,
            "token": self.token,
            "tracing": self.tracing,
            "encryption": self.encryption,
        }


@dataclass(frozen=True, slots=True)
class AppReceiver:
    """A consumer, and the handlers of its messages."""

    group: str
    """The declared group; a consumer that broadcasts uses one of its own."""
    consumer: AsyncConsumer | AsyncPushConsumer
    handlings: tuple[Handling, ...]

    @property
    def topics(self) -> list[str]:
        """The topics of its subscriptions."""
        return [topic for handling in self.handlings for topic in handling.of.topics]


def receivers_of(
    chosen: Sequence[Subscription], sources: Sources, overrides: Overrides, transactions: Transactions
) -> list[AppReceiver]:
    """Return the receivers of these subscriptions, not started. Raises MisuseError, also if there is no log to read."""
    at_brokers = [_at_brokers(each, sources, overrides, transactions) for each in chosen if each.source == "brokers"]
    return [*at_brokers, *(_of_log(each, sources, overrides, transactions) for each in groups_of_log(chosen))]


def groups_of_log(subscriptions: Sequence[Subscription]) -> Iterator[list[Subscription]]:
    """Yield the subscriptions that read the log, by their groups. Raises MisuseError if topics of a group differ in an
    option that they share."""
    of_log = [each for each in subscriptions if each.source == "log"]
    for _, members in groupby(sorted(of_log, key=_group_of), key=_group_of):
        first, *others = group = list(members)
        for other in others:
            for option in ("start", "broadcast", "log_options"):
                if getattr(first, option) != getattr(other, option):
                    raise _differ(first, other, option)
        yield group


def _differ(first: Subscription, other: Subscription, option: str) -> MisuseError:
    return MisuseError(
        f"group {first.group} reads topics {first.topics[0]!r} and {other.topics[0]!r} of the log, which share one "
        f"start=, broadcast=, ordered=, strategy=, zone= and missing=; {shown(getattr(first, option))} and "
        f"{shown(getattr(other, option))} differ: give both the same, or one of them a group of its own"
    )


def _group_of(subscription: Subscription) -> str:
    return subscription.group or ""


def _at_brokers(of: Subscription, sources: Sources, overrides: Overrides, transactions: Transactions) -> AppReceiver:
    group = _group_of(of)
    consumer = AsyncConsumer(
        sources.brokers,
        group=group,
        concurrency=of.message_concurrency,
        visibility_timeout_s=sources.visibility_timeout_s,
        start=of.start,
        broadcast=of.broadcast,
        **sources.in_common,
    )
    handling = Handling(of, overrides, transactions, group=consumer.group)
    handling.subscribe(consumer._subscriptions)
    return AppReceiver(group, consumer, (handling,))


def _of_log(
    members: Sequence[Subscription], sources: Sources, overrides: Overrides, transactions: Transactions
) -> AppReceiver:
    try:
        from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError(lacking('source="log"', exc, ["metaq"]) or str(exc), name=exc.name) from exc

    first = members[0]
    group = _group_of(first)
    options = ConsumerOptions(
        concurrency=min(sum(each.message_concurrency for each in members), CONCURRENCY_MAX),
        start=first.start,
        broadcast=first.broadcast,
        **sources.in_common,
    )
    consumer = AsyncPushConsumer(_log_of(first, sources), group, options, first.log_options)
    handlings = tuple(
        Handling(each, overrides, transactions, group=consumer.group, begins=consumer.hands_on) for each in members
    )
    for handling in handlings:
        of = handling.of
        handling.subscribe(consumer._subscriptions)
        consumer._set_apart(of.topics, concurrency=of.message_concurrency, list_count=of.batch or 1)
    return AppReceiver(group, consumer, handlings)


def _log_of(of: Subscription, sources: Sources) -> LogChoice:
    log = sources.log if sources.log is not None else os.environ.get(LOG_VARIABLE)
    if not log:
        raise MisuseError(
            f'the handler of {of.title} in group {of.group} has source="log", and the application has no log: '
            'write Txmsg(..., log="HOST:PORT"), with the address of `txmsg metaq serve`, a directory or '
            f"kafka://HOST:PORT, or set {LOG_VARIABLE}"
        )
    return log
