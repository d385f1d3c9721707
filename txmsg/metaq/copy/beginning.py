"""Starts a copy: an empty log with the identity of its leader's."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from txmsg.metaq.interface import LogQueue
from txmsg.metaq.store.cells import queue_directory
from txmsg.metaq.store.commit_log import files_of, log_file, sync_directory
from txmsg.metaq.store.lock import WriteLock
from txmsg.metaq.store.queues import mark_end
from txmsg.metaq.store.role import CopyOf, write_copy
from txmsg.metaq.store.state import LogIdentity, write_identity

_FILES: Final = ("log.json", "checkpoint", "topics.json", "ahead", "fence.json")
_DIRECTORIES: Final = ("queues", "keys", "groups", "damaged")


def begin_copy(
    root: Path, copy: CopyOf | None, identity: LogIdentity, begin: int, ends: Mapping[LogQueue, int]
) -> None:
    """Make an empty log that continues at `begin`, and its queues at `ends`. Deletes an existing one.

    After a crash it is repeated: until the end a copy is not begun, and any other log has no `log.json`.
    """
    lock = WriteLock(root)
    try:
        if copy is not None:
            write_copy(root, replace(copy, is_begun=False))
        for name in _FILES:
            (root / name).unlink(missing_ok=True)
        sync_directory(root)
        for name in _DIRECTORIES:
            with suppress(FileNotFoundError):
                shutil.rmtree(root / name)
        commit_log = root / "commitlog"
        for first in files_of(commit_log, ".log"):
            log_file(commit_log, first).unlink()
        log_file(commit_log, begin).touch(0o600)
        sync_directory(commit_log)
        for queue, end in ends.items():
            mark_end(queue_directory(root, *queue), end)
        write_identity(root, identity)
        if copy is not None:
            write_copy(root, replace(copy, is_begun=True))
    finally:
        lock.release()
