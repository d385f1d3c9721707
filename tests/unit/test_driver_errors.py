"""Errors of drivers when another transaction holds the key of a row."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from txmsg.checker.fence.driver import has_met_another

OVERTAKEN = (1020, "Record has changed since last read in table 'txmsg_fence'; try restarting transaction")
"""The error of MariaDB 11.8: tests/integration/fence get it with --mariadb=11.8."""


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (IntegrityError("insert", {}, Exception(1062, "Duplicate entry")), True),
        (OperationalError("insert", {}, Exception(*OVERTAKEN)), True),
        (Exception(*OVERTAKEN), True),
        (OperationalError("insert", {}, Exception(1205, "Lock wait timeout exceeded")), False),
        (OperationalError("insert", {}, Exception("1020 rows")), False),
    ],
    ids=["duplicate", "overtaken", "overtaken, of the driver", "lock", "text"],
)
def test_a_locked_row_is_distinguished_from_other_errors(error: Exception, is_so: bool) -> None:
    assert has_met_another(error) is is_so
