"""Programs that some tests need and pip does not install.

Where one is missing, its tests are skipped; with `--require-tools` no test runs until it is installed.
"""

from __future__ import annotations

import shutil

from tests import kafka_server, mariadb_server, pgbouncer, prometheus
from tests.chaos import guest_java
from tests.page import chromium
from tests.preloaded import HOW_TO_INSTALL_CC, compiler
from tests.rocketmq import programs
from txmsg.ops.demo.browser import find_browser

HOW_TO_INSTALL_LOGROTATE = "logrotate is not installed: `apt-get install logrotate` (Debian)"


def missing(*, mariadb: str, kafka: str) -> list[str]:
    """Return the missing programs and how to install them, one line each. mariadb, kafka: those options."""
    found = {
        mariadb_server.HOW_TO_INSTALL: mariadb != "installed" or mariadb_server.is_installed(),
        kafka_server.HOW_TO_INSTALL: kafka != "maven" or kafka_server.is_installed(),
        chromium.HOW_TO_INSTALL: find_browser() is not None,
        prometheus.HOW_TO_INSTALL: prometheus.is_installed(),
        pgbouncer.HOW_TO_INSTALL: pgbouncer.is_installed(),
        HOW_TO_INSTALL_LOGROTATE: shutil.which("logrotate") is not None,
        guest_java.HOW_TO_INSTALL: guest_java.is_installed(),  # it needs everything that other Java tests need
        programs.NODE.how_to_install: programs.NODE.is_installed(),
        # Some systems have only an old one: its tests are then skipped with that reason.
        programs.GO.how_to_install: shutil.which("go") is not None,
        HOW_TO_INSTALL_CC: compiler() is not None,
    }
    return [how_to_install for how_to_install, is_there in found.items() if not is_there]
