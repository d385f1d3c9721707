"""An agent: all sources of a process, until it is told to stop."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from txmsg.errors import StorageError
from txmsg.metaq.agent.agent_config import AgentFile, SourceConfig
from txmsg.metaq.agent.control import SourceControl, applied
from txmsg.metaq.agent.source import Source
from txmsg.metaq.interface import LogAccess
from txmsg.metaq.store.lock import lock_private
from txmsg.runtime.logs import EventLog
from txmsg.runtime.owners import refusal_text
from txmsg.settings.catalogue import settings_of

_log = EventLog(__name__)

SILENCE_S_MAX: Final = 120.0
"""Seconds after which a silent source counts as hanging. A round of a source takes seconds."""
_STATUS_S: Final = 1.0
_STATUS: Final = "status.json"


class Agent:
    """Reads the files of all sources between `run` and `stop`. Raises LogBusy if another agent uses its directory."""

    def __init__(self, file: AgentFile, log: LogAccess) -> None:
        self.file = file
        self.started_at = time.time()
        self.sources: dict[str, Source] = {}
        self._stopped: SimpleQueue[None] = SimpleQueue()  # which a signal handler may use at any moment
        state_dir = file.agent.state_dir
        with ExitStack() as opened:
            # The lock first: a second agent with this directory would read the same files and overwrite the positions.
            opened.callback(os.close, lock_private(state_dir, what="state_dir", user="agent"))
            _tell_of_left_spools(state_dir, file.sources)
            for name, config in file.sources.items():
                self.sources[name] = Source(
                    name, config, agent=file.agent.shown_name(), state_dir=state_dir, log=log, save_s=file.agent.save_s
                )
                opened.callback(self.sources[name].close)
            self._control: SourceControl | None = None
            if file.agent.control:
                self._control = SourceControl(log, file.agent.control, state_dir / "settings", self._use_changes)
                opened.callback(self._control.close)
                self._use_changes()
            self._opened = opened.pop_all()

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Read until `stop`. Positions are on disk on return."""
        try:
            for source in self.sources.values():
                source.start()
            if self._control is not None:
                self._control.start()
            self._write_status()
            on_ready()
            while not self._is_stopped_within(_STATUS_S):
                self._write_status()
        finally:
            for source in self.sources.values():
                source.stop()
            self._opened.close()
            self._write_status()

    def stop(self) -> None:
        """Ask `run` to return, when the appends under way have ended. A signal handler may call it."""
        self._stopped.put(None)

    def _is_stopped_within(self, seconds: float) -> bool:
        try:
            self._stopped.get(timeout=seconds)
        except Empty:
            return False
        return True

    def apply_settings(self, file: AgentFile) -> None:
        """Apply the live settings of these sources from now on, and log which ones need a restart."""
        same_level = replace(file.agent, log_level=self.file.agent.log_level)
        if same_level != self.file.agent or _not_live(file.sources) != _not_live(self.file.sources):
            _log.warning(
                "agent.needs_restart",
                "the agent's file has changes that only a restart applies: restart this process; its live settings "
                "are applied",
            )
        known = {name: file.sources.get(name, config) for name, config in self.file.sources.items()}
        self.file = replace(self.file, sources=known)
        self._use_changes()

    def _use_changes(self) -> None:
        changes = self._control.changes if self._control is not None else ()
        agent = self.file.agent.shown_name()
        for name, config in self.file.sources.items():
            self.sources[name].apply_settings(applied(config, changes, agent=agent, source=name))

    def _write_status(self) -> None:
        """Write the status file. It is not synced, because it is written again within a second."""
        path = self.file.agent.state_dir / _STATUS
        beside = path.with_suffix(".new")
        try:
            beside.write_text(json.dumps(self.status()))
            beside.replace(path)
        except OSError as exc:
            _log.warning(
                "agent.status_unwritten",
                "%(path)s cannot be written: %(error)s",
                path=path,
                error=refusal_text(exc, path),
            )

    def status(self) -> dict[str, Any]:
        """Return the agent's state, for people."""
        return {
            "agent": self.file.agent.shown_name(),
            "pid": os.getpid(),
            "log": self.file.agent.log,
            "at": time.time(),
            "started_at": self.started_at,
            "sources": {name: _status_of(source, self.held(name)) for name, source in self.sources.items()},
        }

    def silence_s(self, name: str) -> float:
        """Return the seconds since the thread of a source last began a round."""
        return time.monotonic() - self.sources[name].stepped_at

    def held(self, name: str) -> str:
        """Return the reason why nothing is read of a source now; empty if it is read."""
        silence_s = self.silence_s(name)
        if silence_s > SILENCE_S_MAX:
            return f"nothing was heard of its thread for {silence_s:.0f} s: check the mounts of its paths"
        return self.sources[name].failure


def _not_live(sources: Mapping[str, SourceConfig]) -> dict[str, dict[str, object]]:
    """Return the changed settings that only a restart applies."""
    names = [each.name for each in settings_of(SourceConfig) if not each.live]
    return {source: {name: getattr(config, name) for name in names} for source, config in sources.items()}


def _tell_of_left_spools(state_dir: Path, sources: Collection[str]) -> None:
    """Log the spools of sources that the file no longer names: their lines are not sent, and must not be forgotten."""
    for directory in state_dir.glob("*.spool"):
        try:
            size_bytes = sum(path.stat().st_size for path in directory.glob("*.spool"))
        except OSError:
            continue
        if directory.stem not in sources and size_bytes:
            _log.warning(
                "agent.spool_left",
                "%(spool)s has %(size_bytes)d bytes of a source that the agent's file does not name, which are not "
                "sent: name it again, with paths that match nothing, or delete the directory",
                spool=directory,
                size_bytes=size_bytes,
            )


def _status_of(source: Source, held: str) -> dict[str, Any]:
    return {
        "topic": source.config.topic,
        "files": source.files(),
        "lines": source.counts.lines,
        "bytes": source.counts.bytes,
        "unread_bytes": source.unread_bytes(),
        "spool_bytes": source.outlet.waiting_size_bytes(),
        "paused": source.config.paused,
        "lines_per_s": source.config.lines_per_s,
        "truncations": source.truncations(),
        "lost_bytes": source.lost_bytes(),
        "held": held,
        "unreadable": "; ".join(source.troubles()),
        "log": source.outlet.failure,
    }


def read_status(state_dir: Path) -> dict[str, Any]:
    """Return the status that the agent of this directory wrote last. Raises StorageError."""
    path = state_dir / _STATUS
    try:
        told: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as exc:
        raise StorageError(f"there is no {path}: no agent has run with this state_dir") from exc
    except OSError as exc:
        raise StorageError(f"{path} cannot be read: {refusal_text(exc, path)}") from exc
    except ValueError as exc:
        raise StorageError(f"{path} cannot be read: {exc}") from exc
    return told
