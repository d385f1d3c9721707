"""The settings that clients are given: their own requests, limited by what is supported and by their group."""

from __future__ import annotations

import math
from typing import Final

from google.protobuf.duration_pb2 import Duration

from txmsg.administration.groups import GroupName, GroupSettings, GroupsService
from txmsg.client.channel import Brokers
from txmsg.errors import TxmsgError, UnknownGroup
from txmsg.rocketmq.codec import group_of
from txmsg.rocketmq.limits import BODY_SIZE_BYTES_MAX
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

RECEIVED_MAX: Final = 32
"""Maximum messages of one receive."""
_ATTEMPTS_MAX: Final = 17
_POLL_S: Final = 5
_TIMEOUT_S: Final = 2.0
"""Seconds for reading a group's settings: clients wait for 3 s when they start."""
_LITE: Final = frozenset({pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER})


_SENDING: Final = pb.RetryPolicy(
    max_attempts=3,
    exponential_backoff=pb.ExponentialBackoff(
        initial=Duration(nanos=10_000_000), max=Duration(seconds=1), multiplier=2
    ),
)
_DELAYS_S: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600)
_NODE_JS: Final = 8
"""The `user_agent.language` of Node.js, whose client reads exponential delays only; Python's reads listed ones only."""


def check_kind(kind: pb.ClientType) -> None:
    """Raise CallRefused for clients that are not served."""
    if kind in _LITE:
        raise CallRefused(
            pb.UNSUPPORTED, "lite consumers are not supported: consume by a PushConsumer or a SimpleConsumer instead"
        )


class Agreements:
    """Settles settings with the clients of one gateway."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def agreed(self, settings: pb.Settings) -> pb.Settings:
        """Return the settings that a client is to use. Raises CallRefused."""
        check_kind(settings.client_type)
        agreed = pb.Settings()
        agreed.CopyFrom(settings)
        agreed.metric.CopyFrom(pb.Metric(on=False))
        if settings.HasField("publishing"):
            agreed.publishing.max_body_size = BODY_SIZE_BYTES_MAX
            agreed.publishing.validate_message_type = True
            agreed.backoff_policy.CopyFrom(_SENDING)
        else:
            group = await self._group(settings.subscription)
            agreed.subscription.fifo = group.orderly
            agreed.subscription.receive_batch_size = RECEIVED_MAX
            agreed.subscription.long_polling_timeout.CopyFrom(Duration(seconds=_POLL_S))
            agreed.backoff_policy.CopyFrom(_retries(group, settings.user_agent.language))
        return agreed

    async def _group(self, subscription: pb.Subscription) -> GroupSettings:
        """Return the group's settings; the defaults for an unknown group."""
        if not subscription.HasField("group"):
            return GroupSettings()
        name = group_of(subscription.group)
        try:
            return await self._brokers.ask_any(GroupsService.show_settings, GroupName(group=name), timeout_s=_TIMEOUT_S)
        except UnknownGroup:
            return GroupSettings()
        except TxmsgError as exc:  # a client that is told nothing does not start; keys keep their order in any case
            _log.warning(
                "rocketmq.group_not_seen",
                "a client of group %(group)s is told that it is not orderly, as it cannot be looked at: %(error)s",
                group=name,
                error=exc,
            )
            return GroupSettings()


def _retries(group: GroupSettings, language: int) -> pb.RetryPolicy:
    """Return the group's maximum of attempts and its delays, in a form that the client's language reads."""
    attempts_max = _ATTEMPTS_MAX if group.retries_max is None else group.retries_max + 1
    delays_s = [math.ceil(delay_s) for delay_s in group.retry_delays_s or _DELAYS_S]  # Python's client cuts fractions
    if language == _NODE_JS:
        exponential = pb.ExponentialBackoff(
            initial=Duration(seconds=delays_s[0]), max=Duration(seconds=max(delays_s)), multiplier=2
        )
        return pb.RetryPolicy(max_attempts=attempts_max, exponential_backoff=exponential)
    listed = pb.CustomizedBackoff(next=[Duration(seconds=delay_s) for delay_s in delays_s])
    return pb.RetryPolicy(max_attempts=attempts_max, customized_backoff=listed)
