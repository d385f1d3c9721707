"""Whether a link polls: the poll under way, and what ends it. Knows no request. Belongs to one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from txmsg.wire.v1.txmsg_pb2 import ReceiveReply


class LinkPolls:
    """The poll of a link that is under way, at most one.

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
        """Whether the next call is to say what came last: no poll will say it, or none for long."""
        return self.is_in_doubt and (self.stopping.is_set() or self.is_paused) and self._under_way is None

    async def poll(self, call: Coroutine[Any, Any, ReceiveReply | None]) -> ReceiveReply | None:
        """Makes the call of a poll. None after a failure, and when it was ended by `pause` or `stop`."""
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
        """Ends the poll under way; no other is to begin until `resume`."""
        self.is_paused = True
        self._cancel_poll()

    def resume(self) -> None:
        """The end of `pause`."""
        self.is_paused = False

    def stop(self) -> None:
        """Ends the poll under way; no other is to begin."""
        self.stopping.set()
        self._cancel_poll()

    def _cancel_poll(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
