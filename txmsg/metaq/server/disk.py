"""Says in the log of a server that the disk of its files is nearly full, long before an append fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from shutil import disk_usage
from typing import Final

from txmsg.checks.thresholds import DEFAULTS
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_LOOK_S: Final = 60.0


class DiskWatch:
    """Checks the disk of a directory now and then. `run` belongs into a task of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_told = False

    async def run(self) -> None:
        """Check the disk until cancelled."""
        while True:
            await self.check_disk()
            await asyncio.sleep(_LOOK_S)

    async def check_disk(self) -> None:
        """Log once that little space is free, and once that there is enough again."""
        try:
            usage = await asyncio.to_thread(disk_usage, self._directory)
        except OSError:  # appends report the reason
            return
        is_short = usage.free / usage.total < DEFAULTS.disk_free_ratio
        if is_short and not self._is_told:
            _log.warning(
                "log.disk_nearly_full",
                "the disk of the log %(log)s has %(percent).1f percent free, %(free_mib)d MiB: enlarge it, or keep "
                "less (--retention, --retention-size); when it is full, appends fail",
                log=self._directory,
                percent=100 * usage.free / usage.total,
                free_mib=usage.free // 1024**2,
            )
        elif self._is_told and not is_short:
            _log.info("log.disk_has_room", "the disk of the log %(log)s has room again", log=self._directory)
        self._is_told = is_short
