"""The parts of a MetaQ server, for its figures, and for settings that change while it runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from txmsg.metaq.copy.copies import Copies
from txmsg.metaq.copy.follower import Follower
from txmsg.metaq.local import LocalLog
from txmsg.metaq.server.appender import AppendExecutor
from txmsg.metaq.server.log_api import LogApi
from txmsg.metaq.server.polls import WaitingPolls
from txmsg.metaq.server.server_config import GO_ON, MetaQConfig
from txmsg.metaq.server.sessions import MemberSessions
from txmsg.metaq.server.users import UserSource
from txmsg.runtime.logs import set_log_level
from txmsg.settings.live import GivenSettings
from txmsg.wire.server_connection import ServerConnection
from txmsg.wire.shared import Shared


@dataclass(frozen=True, slots=True)
class MetaQParts:
    """The parts that its metrics read, and those that take live settings."""

    given: GivenSettings[MetaQConfig]
    log: LocalLog
    appender: AppendExecutor
    polls: WaitingPolls
    sessions: MemberSessions
    users: UserSource | None
    api: LogApi
    copies: Copies
    follower: Follower | None
    shared: Shared[ServerConnection]
    stop: asyncio.Event

    @property
    def config(self) -> MetaQConfig:
        """The current settings."""
        return self.given.config

    def apply_settings(self, config: MetaQConfig) -> None:
        """Apply the live settings of a configuration."""
        set_log_level(config.log_level)
        self.log.apply_settings(config.log)
        self.copies.timeout_s = config.copies.timeout_s
        self.copies.goes_on = config.copies.missing == GO_ON
        if self.users is not None:
            self.users.guard.use_limits(config.user.limits())
