"""A MetaQ log as the console reaches it: in its directory, or at its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from txmsg.console.calls import Calls

if TYPE_CHECKING:
    from txmsg.metaq.access import LogAccess

T = TypeVar("T")

_ANSWER_S_MAX: Final = 5.0
_THREADS: Final = 4


class Log:
    """A log by its name in the console."""

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        self.where = where
        self._calls = Calls(f"the log {name}", _THREADS)

    async def run(self, work: Callable[[LogAccess], T]) -> T:
        """What `work` makes of the log, which is opened for it alone: it may have been replaced since.

        Raises the errors of errors.py.
        """
        return await self._calls.run(lambda: self._with_log(work))

    def _with_log(self, work: Callable[[LogAccess], T]) -> T:
        from txmsg.metaq.location import open_log  # with txmsg[metaq] only

        with open_log(self.where, timeout_s=_ANSWER_S_MAX) as access:
            return work(access)

    def close(self) -> None:
        """Calls that have not begun do not begin. Closing twice is fine."""
        self._calls.close()
