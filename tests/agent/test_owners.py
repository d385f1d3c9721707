"""Files of an agent that the system refuses: errors name file, owner and user; root leaves no files of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests import becoming
from tests.becoming import NOBODY, become
from txmsg.errors import MisuseError, StorageError
from txmsg.metaq.agent.agent import read_status
from txmsg.metaq.agent.agent_config import read_agent_file
from txmsg.metaq.agent.positions import read_positions, write_positions
from txmsg.metaq.store.lock import lock_private

pytestmark = pytest.mark.skipif(bool(becoming.why_not()), reason=becoming.why_not())


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A directory of user `nobody` that every user can reach."""
    with TemporaryDirectory(prefix="txmsg-owners-", dir="/tmp") as made:
        os.chown(made, NOBODY, NOBODY)
        yield Path(made)


def of_root(path: Path, content: str = "") -> Path:
    path.write_text(content)
    path.chmod(0o600)
    return path


def test_error_about_positions_owned_by_root_advises_against_deleting_them(state_dir: Path) -> None:
    path = state_dir / "web.positions"
    write_positions(path, [])
    with become(), pytest.raises(StorageError, match=r"web\.positions belongs to user root .* nobody") as told:
        read_positions(path)
    assert "delete" not in str(told.value)


def test_error_about_unwritable_positions_names_the_directory(state_dir: Path) -> None:
    closed = state_dir / "closed"
    closed.mkdir(mode=0o755)
    with become(), pytest.raises(StorageError, match=r"closed belongs to user root \(id 0\) and has mode 0755"):
        write_positions(closed / "web.positions", [])


def test_error_names_status_and_settings_files_owned_by_root(state_dir: Path) -> None:
    of_root(state_dir / "status.json", "{}")
    with become(), pytest.raises(StorageError, match=r"status\.json belongs to user root"):
        read_status(state_dir)
    settings = of_root(state_dir / "agent.toml")
    with become(), pytest.raises(MisuseError, match=r"agent\.toml belongs to user root"):
        read_agent_file(settings)


def test_root_cannot_run_agent_in_directory_of_another_user(state_dir: Path) -> None:
    with pytest.raises(StorageError, match=r"state_dir .* belongs to user nobody .*, and this is root"):
        lock_private(state_dir, what="state_dir", user="agent")
    assert list(state_dir.iterdir()) == []
