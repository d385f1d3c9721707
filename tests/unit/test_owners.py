"""What is said of a refusal by the operating system, without one: errors and modes are given."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from txmsg.runtime.owners import is_full, refusal_text, require_own


def refused(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_needs_space(number: int, tmp_path: Path) -> None:
    exc = refused(number, tmp_path)
    assert is_full(exc)
    assert refusal_text(exc) == f"{os.strerror(number)}: free space"


def test_a_read_only_file_system_needs_another_mount(tmp_path: Path) -> None:
    assert "mount it for writing" in refusal_text(refused(errno.EROFS, tmp_path))


def test_an_error_that_no_permission_helps_against_gets_no_advice(tmp_path: Path) -> None:
    assert refusal_text(refused(errno.EIO, tmp_path)) == os.strerror(errno.EIO)
    assert refusal_text(OSError("odd")) == "odd"


def test_a_mode_that_allows_everything_is_not_blamed(tmp_path: Path) -> None:
    """A security module, an immutable file or a mount refuses: changing owner or mode would not help."""
    path = tmp_path / "file"
    path.touch(mode=0o600)
    assert refusal_text(refused(errno.EACCES, path)) == "Permission denied"


@pytest.mark.skipif(os.geteuid() == 0, reason="root needs no permission")
def test_a_file_of_ones_own_needs_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(0)
    assert f"chmod u+rw {path}" in refusal_text(refused(errno.EACCES, path))


def test_a_directory_that_is_not_there_yet_may_be_made(tmp_path: Path) -> None:
    require_own(tmp_path / "new", "the log")
    require_own(tmp_path, "the log")
