"""Advice after refusals of the operating system, with given errors and modes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import becoming
from tests.becoming import NOBODY
from txmsg.errors import StorageError
from txmsg.metaq.store.lock import WriteLock, lock_private, make_private
from txmsg.ops.cli.main import main
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


def test_an_error_unrelated_to_permissions_gets_no_advice(tmp_path: Path) -> None:
    assert refusal_text(refused(errno.EIO, tmp_path)) == os.strerror(errno.EIO)
    assert refusal_text(OSError("odd")) == "odd"


def test_a_permissive_mode_is_not_blamed(tmp_path: Path) -> None:
    """A security module, an immutable file or a mount refuses: changing owner or mode would not help."""
    path = tmp_path / "file"
    path.touch(mode=0o600)
    assert refusal_text(refused(errno.EACCES, path)) == "Permission denied"


@pytest.mark.skipif(os.geteuid() == 0, reason="root needs no permission")
def test_a_file_owned_by_the_user_needs_another_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(0)
    assert f"chmod u+rw {path}" in refusal_text(refused(errno.EACCES, path))


def test_a_missing_directory_may_be_created(tmp_path: Path) -> None:
    require_own(tmp_path / "new", "the log")
    require_own(tmp_path, "the log")


@pytest.fixture
def of_nobody(tmp_path: Path) -> Path:
    """A directory of another user."""
    if reason := becoming.why_not():
        pytest.skip(reason)
    directory = tmp_path / "home"
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    return directory


def refusals(directory: Path) -> list[str]:
    """Return the refusals for root when it writes there, for each kind of write."""
    told = []
    for write in (
        lambda: require_own(directory, "the log"),
        lambda: make_private(directory),
        lambda: lock_private(directory, what="the log", user="server"),
        lambda: WriteLock(directory),
    ):
        with pytest.raises(StorageError) as refusal:
            write()
        told.append(str(refusal.value))
    return told


@pytest.mark.parametrize("owner", [NOBODY, 0])
def test_root_does_not_follow_a_link_in_the_directory_of_another_user(of_nobody: Path, owner: int) -> None:
    target = of_nobody.parent / "cron.d"
    target.mkdir()
    (of_nobody / "log").symlink_to(target)
    os.chown(of_nobody / "log", owner, owner, follow_symlinks=False)
    for told in refusals(of_nobody / "log"):
        assert f"the directory {of_nobody}, which belongs to user nobody (id 65534)" in told
        assert "Run this as that user (`sudo -u nobody ...`" in told
        assert "or name a directory that lies in root's alone" in told
    assert list(target.iterdir()) == []


def test_root_does_not_create_a_directory_in_that_of_another_user(of_nobody: Path) -> None:
    (of_nobody / "of root").mkdir()
    for inside in (of_nobody / "new" / "log", of_nobody / "of root" / "log", of_nobody / ".." / "home" / "log"):
        assert all(f"the directory {of_nobody}, which" in told for told in refusals(inside))
    assert [path.name for path in of_nobody.iterdir()] == ["of root"]


def test_root_follows_its_own_links_but_not_those_of_another_user(of_nobody: Path) -> None:
    """In /tmp everybody can create links."""
    target = of_nobody.parent / "target"
    target.mkdir()
    link = of_nobody.parent / "link"
    link.symlink_to("target")
    require_own(link / "log", "the log")
    make_private(link / "log")
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    for told in refusals(link / "log"):
        assert f"the link {link}, which belongs to user nobody" in told
    (target / "home").symlink_to(of_nobody)
    assert all(f"the directory {of_nobody}, which" in told for told in refusals(target / "home" / "log"))


def test_cyclic_links_are_left_to_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    require_own(tmp_path / "circle" / "log", "the log")


def test_a_directory_created_concurrently_by_another_user_is_refused(
    of_nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = of_nobody.parent / "new"

    def mkdir(path: Path, mode: int = 0o777, *, parents: bool = False, exist_ok: bool = False) -> None:
        if path == new:
            os.mkdir(path)
            os.chown(path, NOBODY, NOBODY)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(StorageError, match=r"new belongs to user nobody"):
        make_private(new)


def test_root_does_not_write_certificates_through_links_of_another_user(of_nobody: Path) -> None:
    target = of_nobody.parent / "precious"
    target.write_text("precious\n")
    made = CliRunner().invoke(main, ["cert", "dev", "--dir", str(of_nobody)])
    assert made.exit_code == 0, made.output
    names = sorted(path.name for path in of_nobody.iterdir())
    assert names == ["ca.key", "ca.pem", "client.key", "client.pem", "server.key", "server.pem"]
    for name in names:
        if not name.startswith("ca."):
            (of_nobody / name).unlink()
            (of_nobody / name).symlink_to(target)
    assert CliRunner().invoke(main, ["cert", "dev", "--dir", str(of_nobody)]).exit_code == 0
    for name in ("ca.key", "ca.pem"):
        (of_nobody / name).unlink()
        (of_nobody / name).symlink_to(of_nobody.parent / "not there")
    assert CliRunner().invoke(main, ["cert", "dev", "--dir", str(of_nobody)]).exit_code == 0
    assert target.read_text() == "precious\n"
    assert not (of_nobody.parent / "not there").exists()
