"""A log server whose disk is full or nearly full: its log, its metrics and `txmsg doctor` report it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_log import found_by
from tests.metaq.logs import batch
from tests.metaq.servers import MetaQProcess, log_at
from tests.metrics.scraping import scrape
from tests.ports import own_port
from tests.small_disk import fill, small_disk
from tests.waiting import until
from txmsg.checks.brokers import DISK_NEARLY_FULL
from txmsg.checks.logs import LOG_FAILED
from txmsg.errors import StorageError
from txmsg.ops.doctor import log as doctor

_MIB = 2**20


def test_full_disk_and_its_end_are_logged_and_reported_by_doctor(tmp_path: Path) -> None:
    metrics, told = f"127.0.0.1:{own_port()}", tmp_path / "metaq.log"
    with small_disk(32 * _MIB) as disk:
        with MetaQProcess(disk / "log", "--http-listen", metrics, log=told) as server, log_at(server.address) as log:
            log.append([batch("t", 0, 0, 1)])
            assert LOG_FAILED not in {each.check for each in found_by(doctor.log_server, server.address)}
            ballast = fill(disk, leave=4096)
            with pytest.raises(StorageError):
                log.append([batch("t", 0, 1, 5000)])
            assert scrape(metrics).value("txmsg_log_failed") == 1
            found, disk_full = found_by(doctor.log_server, server.address)
            assert (found.check, "No space left" in found.what) == (LOG_FAILED, True)
            assert disk_full.check is DISK_NEARLY_FULL
            assert "--retention" in found.fix
            until(lambda: "the log accepts no appends" in told.read_text())
            with pytest.raises(StorageError):
                log.append([batch("t", 0, 1, 5000)])
            ballast.unlink()
            log.append([batch("t", 0, 1, 1)])
            until(lambda: "the log accepts appends again" in told.read_text())
        text = told.read_text()
    assert text.count("the log accepts no appends") == 1
    assert "No space left" in text


def test_nearly_full_disk_is_logged(tmp_path: Path) -> None:
    told = tmp_path / "metaq.log"
    with small_disk(256 * _MIB) as disk:
        fill(disk, leave=20 * _MIB)
        with MetaQProcess(disk / "log", log=told) as server:
            until(lambda: "percent free" in told.read_text())
            [found] = found_by(doctor.log_server, server.address)
            assert found.check is DISK_NEARLY_FULL
        assert "enlarge it, or keep less" in told.read_text()
