"""Settings of a group: stored beside its offsets, in a directory and at a server, with fields of later releases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.metaq.logs import fill
from tests.metaq.servers import log_at, served
from txmsg.errors import CorruptLog, MisuseError, UnknownGroup
from txmsg.metaq.fsck.groups import check_with_groups
from txmsg.metaq.interface import LogGroupSettings
from txmsg.metaq.location import open_log
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Log
from txmsg.metaq.store.state import read_checked, write_checked


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log with group g."""
    with Log(tmp_path) as log:
        fill(log, "t", 0, [5])
    with open_log(tmp_path) as access:
        access.join("g", ["t"]).leave({})
    return tmp_path


def test_group_settings_survive_a_server_restart_and_reach_members(root: Path) -> None:
    config = MetaQConfig(data_dir=root, listen=f"unix:{root}/socket")
    with served(config) as address, log_at(address) as log:
        member = log.join("g", ["t"])
        assert member.view().settings == log.group("g").settings == LogGroupSettings()
        altered = log.alter_group("g", stopped=True, concurrency=3, rate_per_s=0.5)
        assert altered == LogGroupSettings(stopped=True, concurrency=3, rate_per_s=0.5)
        assert member.view().settings == altered
        assert log.alter_group("g") == altered, "what is not named stays"
    with served(config) as address, log_at(address) as log:
        assert log.join("g", ["t"]).view().settings == log.group("g").settings == altered
        assert log.alter_group("g", concurrency=0, rate_per_s=0) == LogGroupSettings(stopped=True)
    with open_log(root) as access:
        assert access.alter_group("g", stopped=False) == LogGroupSettings()


@pytest.mark.parametrize("place", ["directory", "server"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stopped": "yes"}, "stopped='yes' of a group"),
        ({"concurrency": -1}, "concurrency=-1 of a group: give 1 to 4096"),
        ({"concurrency": 4097}, "concurrency=4097"),
        ({"concurrency": 1.5}, "concurrency=1.5"),
        ({"rate_per_s": -1.0}, "rate_per_s=-1.0 of a group: give messages per second"),
        ({"rate_per_s": float("nan")}, "rate_per_s=nan"),
    ],
)
def test_invalid_group_settings_are_refused(root: Path, place: str, change: dict[str, Any], said: str) -> None:
    def check(where: str) -> None:
        with open_log(where) as access:
            with pytest.raises(MisuseError, match=said):
                access.alter_group("g", **change)
            assert access.group("g").settings == LogGroupSettings()
            with pytest.raises(UnknownGroup):
                access.alter_group("unknown", stopped=True)

    if place == "directory":
        check(str(root))
    else:
        with served(MetaQConfig(data_dir=root, listen=f"unix:{root}/socket")) as address:
            check(address)


def test_unknown_field_of_a_later_release_is_preserved(root: Path) -> None:
    path = root / "groups" / "g" / "settings.json"
    with open_log(root) as access:
        access.alter_group("g", stopped=True)
        write_checked(path, {**read_checked(path), "quota": {"bytes": 7}})
        assert access.group("g").settings == LogGroupSettings(stopped=True)
        access.alter_group("g", rate_per_s=2.0)
    assert read_checked(path) == {
        "version": 1,
        "stopped": True,
        "concurrency": None,
        "rate_per_s": 2.0,
        "quota": {"bytes": 7},
    }


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes().replace(b"true", b"fals")), "delete the file, then alter"),
        (lambda path: path.write_bytes(b""), "delete the file, then alter"),
        (lambda path: write_checked(path, {"version": 2}), "has version 2, and this release reads 1: upgrade"),
        (lambda path: write_checked(path, {"version": 1, "concurrency": "few"}), "concurrency='few' of a group"),
    ],
)
def test_unreadable_group_settings_are_named_with_the_fix(
    root: Path, spoil: Callable[[Path], object], said: str
) -> None:
    path = root / "groups" / "g" / "settings.json"
    with open_log(root) as access:
        member = access.join("g", ["t"])
        access.alter_group("g", stopped=True)
        spoil(path)
        for look in (member.view, lambda: access.group("g"), lambda: access.alter_group("g", stopped=False)):
            with pytest.raises(CorruptLog, match=said):
                look()
    assert [problem.file for problem in check_with_groups(root).problems] == ["groups/g/settings.json"]
    path.unlink()
    with open_log(root) as access:
        assert access.alter_group("g", concurrency=2) == LogGroupSettings(concurrency=2)
