"""Each check of a log finds its cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from txmsg.checks.check import CRITICAL, WARNING, Finding
from txmsg.metaq.location import open_log
from txmsg.metaq.store.log import Log
from txmsg.ops.doctor import log
from txmsg.ops.doctor.probe import Probe


def found_by(check: Probe[log.ProbedLog], where: str) -> list[Finding]:
    assert check in log.PROBES
    with open_log(where) as access:
        return list(check(log.ProbedLog(where, access)))


def test_healthy_log_has_no_findings(tmp_path: Path) -> None:
    with Log(tmp_path):
        pass
    assert [each for each in log.probe_log(str(tmp_path)) if each.check.name != "disk-nearly-full"] == []


def test_log_readable_by_other_users_is_a_warning(tmp_path: Path) -> None:
    with Log(tmp_path):
        pass
    tmp_path.chmod(0o750)
    [found] = [each for each in log.probe_log(str(tmp_path)) if each.check.name == "data-permissions"]
    assert (found.severity, found.fix) == (WARNING, f"chmod 700 {tmp_path}")
    assert "mode 0750" in found.what


def test_directory_without_a_log_is_the_only_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_ANSWER_S_MAX", 0.2)
    [found] = log.probe_log(str(tmp_path / "none"))
    assert (found.check.name, found.severity) == ("log-opens", CRITICAL)
    [found] = log.probe_log("127.0.0.1:1")
    assert (found.check.name, found.severity) == ("log-opens", CRITICAL)
