"""Journals: each entry is read once, and an incomplete last line is not read."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.journal import Journal, Journals


def test_each_journal_entry_is_read_once_even_if_a_line_was_incomplete(tmp_path: Path) -> None:
    journal, journals = Journal(tmp_path / "producer-0.0.jsonl"), Journals(tmp_path)
    journal.write("begin", "a", 1)
    with (tmp_path / "producer-0.0.jsonl").open("ab") as file:
        file.write(b'[1.0,2.0,"en')
    assert [(process, entry[2:]) for process, entry in journals.new()] == [("producer-0.0", ["begin", "a", 1])]
    assert list(journals.new()) == []
    with (tmp_path / "producer-0.0.jsonl").open("ab") as file:
        file.write(b'd"]\n')
    journal.write("begin", "b", 2)
    journal.close()
    assert [entry[2:] for _, entry in journals.new()] == [["end"], ["begin", "b", 2]]
