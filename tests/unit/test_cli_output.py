"""What commands print is what they were told, whatever stands in it."""

from __future__ import annotations

import pytest
from rich.table import Table

from txmsg.cli.output import first_line, print_table
from txmsg.cli.up import with_name


def test_a_table_shows_keys_and_errors_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Key", "Last error", box=None)
    table.add_row("[/order] [red]", "KeyError: ':heart:'")
    print_table(table)
    assert capsys.readouterr().out.split("\n")[1].split() == ["[/order]", "[red]", "KeyError:", "':heart:'"]


def test_of_an_error_a_row_has_what_was_raised() -> None:
    traceback = 'ValueError: no stamps\n  File "mail.py", line 7, in mail\n'
    assert [first_line(each) for each in (traceback, "no stamps", "", None)] == [
        "ValueError: no stamps",
        "no stamps",
        "",
        "",
    ]


def test_a_line_of_json_in_the_log_of_a_part_stays_json() -> None:
    assert with_name("broker", "2026-05-01 WARNING gone") == "broker   2026-05-01 WARNING gone"
    assert with_name("broker", '{"event": "broker.gone"}') == '{"event": "broker.gone"}'
