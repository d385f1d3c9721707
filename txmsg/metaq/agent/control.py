"""Settings at run time: a topic of the log, which every agent reads anyway, with the settings of each agent and source.

Each message is a change: the pattern of agents, the pattern of sources, a setting, and its value or null for that of
the file. The last one that matches wins. Agents keep what they have read beside their positions, since a log keeps its
messages for a while only.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from txmsg.errors import (
    MisuseError,
    OffsetOutOfRange,
    OffsetsMissing,
    StorageError,
    TxmsgError,
    UnreadableMessage,
    shown,
)
from txmsg.message import Message
from txmsg.metaq.agent.agent_config import LIVE, SourceConfig
from txmsg.metaq.interface import LogAccess, LogQueue, offset_after
from txmsg.metaq.producer import LogProducer
from txmsg.metaq.store.state import read_checked, write_checked
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_LOOK_S: Final = 2.0
_CHANGES_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class SourceChange:
    """One message of the topic. value: as in the file; None: as the file says."""

    agents: str
    sources: str
    setting: str
    value: Any

    def packed(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, body: bytes) -> SourceChange:
        """Return the change of a message. Raises MisuseError for a message that is not a valid one."""
        try:
            told = json.loads(body)
            change = cls(str(told["agents"]), str(told["sources"]), str(told["setting"]), told["value"])
        except (ValueError, KeyError, TypeError) as exc:
            raise MisuseError(f"{shown(body)} is not a change of settings: {exc}") from exc
        return change.checked()

    def checked(self) -> SourceChange:
        """Return the change with its value converted for the setting. Raises MisuseError for an invalid value."""
        if self.setting not in LIVE:
            raise MisuseError(
                f"{shown(self.setting)} cannot be changed at run time: {', '.join(LIVE)} can; others are changed in "
                "the agent's file"
            )
        value = None if self.value is None else LIVE[self.setting].value_of(self.value)
        return replace(self, value=value)


def applied(config: SourceConfig, changes: Sequence[SourceChange], *, agent: str, source: str) -> SourceConfig:
    """Return the settings of a source after these changes."""
    values: dict[str, Any] = {}
    for change in changes:
        if fnmatch(agent, change.agents) and fnmatch(source, change.sources):
            if change.value is None:
                values.pop(change.setting, None)
            else:
                values[change.setting] = change.value
    try:
        return replace(config, **values)
    except TxmsgError as exc:
        _log.error("agent.control_refused", "source %(source)s keeps its settings: %(error)s", source=source, error=exc)
        return config


def without_overruled(changes: Sequence[SourceChange]) -> list[SourceChange]:
    """Return the changes that no later one for the same agents and sources overrules. At most so many are kept."""
    last = {(change.agents, change.sources, change.setting): change for change in changes}
    kept = [change for change in changes if last[change.agents, change.sources, change.setting] is change]
    return kept[-_CHANGES_MAX:]


class SourceControl:
    """Reads the topic on a thread of its own, between `start` and `close`, and reports changes."""

    def __init__(self, log: LogAccess, topic: str, file: Path, on_changed: Callable[[], None]) -> None:
        self._log = log
        self._queue = LogQueue(topic, 0)
        self._file = file
        self._on_changed = on_changed
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txmsg-agent-control", daemon=True)
        self.changes: list[SourceChange] = []
        """All changes that were read and still apply."""
        self._offset = 0
        self._log_id = 0
        self._is_written = True
        self._read_file()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait for it. Closing twice is fine."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_LOOK_S + 60)

    def _run(self) -> None:
        trouble = ""
        while not self._closed.is_set():
            try:
                self.read_changes()
                trouble = ""
            except StorageError as exc:  # such as a full disk
                if trouble != str(exc):
                    _log.warning("agent.control_unkept", "settings of the log are not kept: %(error)s", error=exc)
                trouble = str(exc)
            except TxmsgError as exc:  # the log is unavailable, or denies it: earlier settings apply
                _log.debug("agent.control_unread", "the settings cannot be read: %(error)s", error=exc)
            except Exception:  # noqa: BLE001 - the root of a thread
                _log.exception("agent.control_failed", "the settings are read again in %(s)g s", s=_LOOK_S)
            self._closed.wait(_LOOK_S)

    def read_changes(self) -> None:
        """Read new changes. Raises the log's errors, and StorageError if they cannot be stored."""
        log_id = self._log.identity().log_id
        # Another log has taken the place of the old one, whose offsets mean nothing in it.
        if log_id != self._log_id:
            self._offset, self._log_id = 0, log_id
        kept = self._log.ranges([self._queue])[self._queue]
        # Retention may have deleted changes that were read: their effect is in the file beside the positions.
        self._offset = max(self._offset, kept.begin)
        before = list(self.changes)
        begin = self._offset
        try:
            self._read_to(kept.end)
        finally:  # changes read before an error apply: the next read begins after them
            self.changes = without_overruled(self.changes)
            if self._offset != begin or self.changes != before:
                self._is_written = False
            try:
                if not self._is_written:
                    self._write_file()  # first: settings in effect must survive a crash
            finally:
                if self.changes != before:
                    self._on_changed()

    def _read_to(self, end: int) -> None:
        while self._offset < end:
            answer = self._log.fetch({self._queue: self._offset})
            if not answer:
                break  # the log is being opened, or away: the next look asks again
            found = answer[0].readable()
            if isinstance(found.error, OffsetsMissing | UnreadableMessage):
                following = offset_after(found.error, self._offset)
                assert following is not None
                if isinstance(found.error, UnreadableMessage):
                    self._leave_out(found.error)
                self._offset = following
                continue
            if isinstance(found.error, OffsetOutOfRange):
                break  # it was deleted meanwhile: the next look begins where the queue does then
            if found.error is not None:
                raise found.error
            for batch in found.batches:
                for message in batch.messages():
                    self._take_change(message.body)
                self._offset = batch.end_offset

    def _take_change(self, body: bytes) -> None:
        try:
            self.changes.append(SourceChange.of(body))
        except MisuseError as exc:
            self._leave_out(exc)

    @staticmethod
    def _leave_out(error: TxmsgError) -> None:
        _log.warning("agent.control_strange", "a message of the topic of settings is left out: %(error)s", error=error)

    def _read_file(self) -> None:
        try:
            told = read_checked(self._file)
            self._log_id, self._offset = int(told["log_id"]), int(told["offset"])
            self.changes = [SourceChange(**each).checked() for each in told["changes"]]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, TxmsgError) as exc:
            raise StorageError(
                f"{self._file} cannot be read ({exc}): delete it, and settings are read from the log again"
            ) from exc

    def _write_file(self) -> None:
        told: Mapping[str, Any] = {
            "log_id": self._log_id,
            "offset": self._offset,
            "changes": [asdict(change) for change in self.changes],
        }
        write_checked(self._file, told)
        self._is_written = True


def change_settings(log: LogAccess, topic: str, changes: Sequence[SourceChange]) -> None:
    """Send a change to all agents of a log; it is in the log on return.

    Raises MisuseError for a value that a setting cannot have.
    """
    for change in changes:
        change.checked()
    LogProducer(log, queues=1).send_many([Message(topic, change.packed()) for change in changes], queue=0)
