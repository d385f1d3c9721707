"""The background work of a log's writer, on a thread: syncs timed topics, writes checkpoints, deletes old files."""

from __future__ import annotations

import threading
from collections.abc import Callable

from txmsg.errors import StorageError, TxmsgError
from txmsg.metaq.store.commit_log import CommitLogReader, sync_directory
from txmsg.metaq.store.end import LogEnd
from txmsg.metaq.store.log_config import LogConfig
from txmsg.metaq.store.queues import Unsynced, sync_files
from txmsg.metaq.store.retention import delete_old_files
from txmsg.metaq.store.state import Checkpoint, write_checkpoint
from txmsg.runtime.logs import EventLog
from txmsg.runtime.owners import refusal_text

_log = EventLog(__name__)


class Upkeep:
    """The thread, between `start` and `stop`, and its work, which any thread may call.

    config: the current settings. keep_s: the minimum age of a topic's messages before deletion, None: for ever.
    kept_from: the position from which on the log is needed, whatever its age. before_checkpoint: called on the thread.
    """

    def __init__(
        self,
        end: LogEnd,
        config: Callable[[], LogConfig],
        *,
        clock: Callable[[], float],
        keep_s: Callable[[str], float | None],
        kept_from: Callable[[], int | None],
        before_checkpoint: Callable[[], None],
    ) -> None:
        self.deleted_files = 0
        self._end = end
        self._config = config
        self._clock = clock
        self._keep_s = keep_s
        self._kept_from = kept_from
        self._before_checkpoint = before_checkpoint
        self._checkpoint_lock = threading.Lock()  # one at a time, nothing deleted meanwhile; taken before `end`'s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txmsg-metaq-flush", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when all its work has ended."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        end = self._end
        since_checkpoint_s = 0.0
        trouble = ""
        while not self._stopped.wait(self._config().flush_s) and end.writer.failed is None:
            since_checkpoint_s += self._config().flush_s
            try:
                if end.has_unseen:
                    end.sync(end.writer.end)
                if since_checkpoint_s >= self._config().checkpoint_s:
                    since_checkpoint_s = 0.0
                    self._before_checkpoint()
                    self.checkpoint()
                trouble = ""
            except (OSError, TxmsgError) as exc:  # a full disk: tried again until there is room
                if trouble != str(exc):
                    _log.warning(
                        "log.not_in_order", "the log %(log)s is not in order: %(error)s", log=end.root, error=exc
                    )
                trouble = str(exc)
            except Exception as exc:  # noqa: BLE001 - the root of a thread: the next append says it
                _log.exception("log.stopped", "the log %(log)s stops", log=end.root)
                end.writer.fail(f"its flushing ended with {exc!r}; open it again")

    # ---- checkpoints

    def checkpoint(self) -> None:
        """Flush, sync cells and record it, so that a recovery has little to read. Raises StorageError."""
        with self._checkpoint_lock:
            # Not the reader of the log, which another thread may read by.
            self._checkpoint(CommitLogReader(self._end.root / "commitlog").begin_position())

    def _checkpoint(self, begin: int) -> bool:
        """Return True if it was written.

        Not while cells wait for room on the disk: the checkpoint before is still true.
        """
        end = self._end
        queues, files = end.queues, end.queues.files
        with end.lock:
            # Position and ends are one snapshot under `lock`. It becomes durable without the lock, frames before cells,
            # so appends continue meanwhile.
            checkpoint = Checkpoint(end.writer.end, begin, queues.ends())
        end.sync(checkpoint.position)
        with end.lock:
            if queues.complete_up_to(checkpoint.position) < checkpoint.position:
                return False
            # Swapped under `lock`: cells that are written from now on belong to the next checkpoint.
            unsynced, files.unsynced = files.unsynced, Unsynced()
        try:
            sync_files(end.root, unsynced)
        except OSError as exc:
            with end.lock:
                # Put back, or the next checkpoint would promise cells that were never synced.
                files.unsynced.add(unsynced)
            raise StorageError(f"the cells of {end.root} cannot be synced: {refusal_text(exc, end.root)}") from exc
        # Last: the checkpoint promises that all cells before its position are on disk.
        write_checkpoint(end.root, end.identity.log_id, checkpoint)
        return True

    # ---- retention

    def delete_old(self, size_bytes_max: int | None) -> list[int]:
        """Delete the oldest files beyond the age or size limit, and return their first positions."""
        with self._checkpoint_lock:
            deleted = delete_old_files(
                self._end.root,
                end=self._end.writer.end,
                size_bytes_max=size_bytes_max,
                keep_s=self._keep_s,
                now=self._clock(),
                note=self._note_begin,
                kept_from=self._kept_from(),
            )
        self.deleted_files += len(deleted)
        return deleted

    def _note_begin(self, begin: int) -> None:
        """Record the log's new begin before files are deleted, so that a file missing for another reason is
        detected.
        """
        try:
            noted = self._checkpoint(begin)
        except StorageError:  # the disk may be full, and deleting makes room
            noted = False
        if not noted:
            (self._end.root / "checkpoint").unlink(missing_ok=True)  # without one, all is read
            sync_directory(self._end.root)
