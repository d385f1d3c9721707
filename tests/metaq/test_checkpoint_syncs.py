"""A checkpoint syncs directories of new cells files before it is written, and no other directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.store import queues
from txmsg.metaq.store.commit_log import sync_directory
from txmsg.metaq.store.log import Append, Log
from txmsg.metaq.store.state import write_checkpoint


def test_checkpoint_syncs_only_directories_of_new_files_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Path | str] = []
    sync, write = sync_directory, write_checkpoint

    def synced(path: Path) -> None:
        sync(path)
        done.append(path)

    def noted(*of: Any) -> None:
        write(*of)
        done.append("noted")

    monkeypatch.setattr(queues, "sync_directory", synced)
    monkeypatch.setattr("txmsg.metaq.store.upkeep.write_checkpoint", noted)
    root = tmp_path / "log"
    with Log(root) as log:
        log.append([Append("t", 0, encode(FrameColumns([b"x"], [1])))])
        log.checkpoint()
        assert done[-1] == "noted"
        assert set(done[:-1]) == {root, root / "queues", root / "queues" / "t", root / "queues" / "t" / "0000"}
        done.clear()
        log.append([Append("t", 0, encode(FrameColumns([b"y"], [2])))])
        log.checkpoint()
        assert done == ["noted"]


def test_directory_is_synced_after_a_file_in_it_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "queue" / "0.cells"
    files = queues.OpenFiles(64)
    files.append(str(path), b"cell", 0)
    files.unsynced = queues.Unsynced()
    files.cut(str(path), 2)
    assert files.unsynced == queues.Unsynced({str(path)}, set())
    files.cut(str(path), 0)
    assert files.unsynced == queues.Unsynced({str(path)}, {str(path.parent)})
    files.close()
