"""The poll of a link: the one in progress, and its end. Knows no request. Belongs to one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from txmsg.wire.v1.txmsg_pb2 import ReceiveReply


class LinkPolls:
    """The poll of a link that is in progress, at most one.

    asked_s: the visibility timeout that it has asked for. is_in_doubt: messages may be on their way from a poll that
    was not answered. stopping: set by `stop`, for good.
    """

    def __init__(self, asked_s: float) -> None:
        self.asked_s = asked_s
        self.stopping = asyncio.Event()
        self.is_paused = False
        self.is_in_doubt = False
        self._under_way: asyncio.Task[ReceiveReply | None] | None = None

    @property
    def is_last_word_due(self) -> bool:
        """True if the next call has to report the last messages: no poll will, or none for long."""
        return self.is_in_doubt and (self.stopping.is_set() or self.is_paused) and self._under_way is None

    async def poll(self, call: Coroutine[Any, Any, ReceiveReply | None]) -> ReceiveReply | None:
        """Make the call of a poll. Returns None after a failure, and if `pause` or `stop` ended it."""
        self.is_in_doubt = True
        under_way = self._under_way = asyncio.create_task(call)
        try:
            reply = await under_way
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            if task.cancelling():  # this one, not only the poll
                raise
            reply = None
        finally:
            self._under_way = None
        self.is_in_doubt = reply is None
        return reply

    def pause(self) -> None:
        """End the poll in progress; no other may begin until `resume`."""
        self.is_paused = True
        self._cancel_poll()

    def resume(self) -> None:
        """End `pause`."""
        self.is_paused = False

    def stop(self) -> None:
        """End the poll in progress; no other may begin."""
        self.stopping.set()
        self._cancel_poll()

    def _cancel_poll(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
