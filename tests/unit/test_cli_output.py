"""Commands print values exactly, whatever characters they contain."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner
from rich.table import Table

from txmsg.ops.cli.options import WIDE, table_options
from txmsg.ops.cli.output import first_line, json_text, print_rows, print_table, seconds
from txmsg.runtime.child import with_name


def test_a_table_shows_keys_and_errors_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Key", "Last error", box=None)
    table.add_row("[/order] [red]", "KeyError: ':heart:'")
    print_table(table)
    assert capsys.readouterr().out.split("\n")[1].split() == ["[/order]", "[red]", "KeyError:", "':heart:'"]


ID = "0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01.0"
AT = datetime(2026, 5, 1, 10, tzinfo=UTC)
ROW = {"id": ID, "topic": "order.placed", "died_at": AT, "last_error": "ValueError: no stamps are left to be had"}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[int], list[str]]:
    """Print a row on a terminal of this width and return its lines."""

    def printed(width: int) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        print_rows([ROW, ROW])
        shown = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
        return [line.rstrip() for line in shown.splitlines()]

    return printed


def test_a_wide_terminal_shows_one_line_per_row(terminal: Callable[[int], list[str]]) -> None:
    title, first, second = terminal(150)
    assert title.split() == ["Message", "Topic", "Died", "at", "Last", "error"]
    assert first == second == f"{ID}  order.placed  {AT.isoformat()}  ValueError: no stamps are left to be had"


def test_long_texts_wrap_between_words_and_ids_and_times_stay_whole(terminal: Callable[[int], list[str]]) -> None:
    _, *lines = terminal(100)
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].startswith(f"{ID}  order.placed  {AT.isoformat()}  ValueError:")
    assert " ".join(" ".join(line[81:].split()) for line in lines[: len(lines) // 2]) == ROW["last_error"]


def test_a_narrow_terminal_shows_each_row_as_several_lines(terminal: Callable[[int], list[str]]) -> None:
    lines = terminal(80)
    first = lines[: lines.index("")]
    assert [line.split(maxsplit=1) for line in first] == [
        ["id", ID],
        ["topic", "order.placed"],
        ["died_at", AT.isoformat()],
        ["last_error", ROW["last_error"]],
    ]


def test_times_are_short_in_tables_and_exact_in_json() -> None:
    at = AT.replace(microsecond=123_456)
    assert json.loads(json_text({"at": at})) == {"at": "2026-05-01T10:00:00.123456+00:00"}
    assert seconds(at) == "2026-05-01T10:00:00+00:00"


def test_columns_can_be_chosen_and_a_wrong_one_is_named() -> None:
    @click.command()
    @table_options
    def command() -> None:
        print_rows([ROW])

    chosen = CliRunner().invoke(command, ["--columns", "last error,id"])
    assert chosen.output.splitlines()[1].split("  ")[::-1] == [ID, ROW["last_error"]]
    refused = CliRunner().invoke(command, ["--columns", "error"])
    assert "there is no error: choose from id, topic, died_at, last_error" in refused.output
    assert refused.exit_code == 2


def test_wide_ignores_the_width_of_the_terminal(terminal: Callable[[int], list[str]]) -> None:
    with click.Context(click.Command("list")) as context:
        context.meta[WIDE] = True
        assert len(terminal(80)) == 3


def test_a_row_shows_the_exception_of_an_error() -> None:
    traceback = 'ValueError: no stamps\n  File "mail.py", line 7, in mail\n'
    assert [first_line(each) for each in (traceback, "no stamps", "", None)] == [
        "ValueError: no stamps",
        "no stamps",
        "",
        "",
    ]


def test_a_json_log_line_of_a_process_stays_json() -> None:
    assert with_name("broker", "2026-05-01 WARNING gone") == "broker   2026-05-01 WARNING gone"
    assert with_name("broker", '{"event": "broker.gone"}') == '{"event": "broker.gone"}'
