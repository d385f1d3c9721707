"""A broker inside the test's process, for settings that the command does not offer."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.in_thread import served_in_thread
from txmsg.broker.config import BrokerConfig
from txmsg.broker.server import serve
from txmsg.settings.live import GivenSettings


def served(config: BrokerConfig) -> AbstractContextManager[str]:
    """Run the broker in a thread and yield its address. Fails unless it stops cleanly at the end."""
    return served_in_thread(lambda on_ready, stop: serve(GivenSettings(config), on_ready, stop), thread_name="broker")
