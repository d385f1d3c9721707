"""Foreign text in logs and terminals cannot control a terminal or forge a line."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from txmsg.errors import error_of_code, printable
from txmsg.ops.cli.output import print_facts, print_table, say
from txmsg.runtime.logs import log_to_stderr

NASTY = "\x1b[31mred\r\n2026 ERROR forged\x07\u202eback\x9b1m"


@given(st.text())
def test_a_printable_text_has_one_line_and_no_control_character(text: str) -> None:
    assert printable(text).isprintable()
    lines = printable(text, lines=True)
    assert lines.replace("\n", "").replace("\t", "").isprintable()
    assert lines.count("\n") == text.count("\n")


def test_a_printable_text_is_not_changed() -> None:
    assert printable("Müller 😀 [red] 100 % \\n") == "Müller 😀 [red] 100 % \\n"
    assert printable("a\x1b[31mb\n\u202e") == "a\\x1b[31mb\\n\\u202e"


def test_an_error_from_the_wire_is_printable() -> None:
    assert str(error_of_code("misuse", NASTY)).isprintable()


def test_a_process_log_has_one_line_per_record(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = []
    try:
        log_to_stderr("warning")
        try:
            raise ValueError(NASTY)
        except ValueError as exc:
            logging.getLogger("txmsg").warning("handler said %s", exc)
            logging.getLogger("txmsg").exception("failed")
    finally:
        root.handlers[:] = before
    first, *rest = capfd.readouterr().err.splitlines()
    assert first.endswith("forged\\x07\\u202eback\\x9b1m")
    assert all(each.replace("\t", "").isprintable() for each in (first, *rest))
    assert rest[0].endswith("failed")


def test_foreign_text_in_command_output_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Error", box=None)
    table.add_row(NASTY)
    print_table(table)
    print_facts({"last_error": NASTY, "headers": {"a": NASTY}})
    say(f" attempt 1: {NASTY}")
    out = capsys.readouterr().out
    assert out.count("forged") == 4
    assert out.replace("\n", "").isprintable()
