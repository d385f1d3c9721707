"""Starts the databases, the broker, the subscribers and the service.

Each subscriber has a database of its own name; the service has "users", the demo's records "attempts".
"""

from __future__ import annotations

import json
from pathlib import Path

from txmsg.ops.demo.registration import GROUPS
from txmsg.ops.demo.stage import DemoStage
from txmsg.runtime.child import Child

STEP_SHARES = {"red_packet": 0.05, "alipay_account": 0.2, "legality_check": 0.1, "social_import": 1.0}
"""Duration of each subscriber's work, as a share of the slow one's."""


class RegistrationStage(DemoStage):
    """All processes but those of the service, which a ServiceCluster starts."""

    def __init__(self, directory: Path, *, slow_ms: int) -> None:
        super().__init__(directory, "users", "attempts", *GROUPS)
        self._slow_ms = slow_ms

    def _set_up(self) -> None:
        self._prepare()
        for name in self.brokers:
            self.start_broker(name)
        self.await_ready(*self.brokers)
        self._admit()
        for group in GROUPS:
            self._start_subscriber(group)
        service = "txmsg.ops.demo.examples.user_registration.service"
        self.run("users-tables", service, USERS_DATABASE_URL=self.sqlalchemy_url("users"))
        self.await_ready()

    def _prepare(self) -> None:
        """Prepare what brokers need."""

    def _admit(self) -> None:
        """Prepare what all others need from brokers."""

    def _start_subscriber(self, group: str) -> None:
        env = {
            "DATABASE_URL": self.sqlalchemy_url(group),
            "STEP_MS": str(round(self._slow_ms * STEP_SHARES[group])),
        }
        self.start(group, f"{__package__}.run_subscriber", group, **env)

    def start_service(self, name: str) -> Child:
        """Start a process of the registration service. The caller ends it."""
        return self.child(
            name,
            f"{__package__}.run_service",
            USERS_DATABASE_URL=self.sqlalchemy_url("users"),
            SUBSCRIBERS=json.dumps({group: self.children[group].address for group in GROUPS}),
        )
