"""Each module that fetches from a log handles unreadable messages and compressed topics.

A part that is new is added here, and with it to the tests that the class names.
"""

from __future__ import annotations

import re
from pathlib import Path

import txmsg

_ROOT = Path(txmsg.__file__).parent
_FETCH = re.compile(r"\b(?:_?log|_?access|readers|reader|self)\.fetch\(")

OF_MESSAGES = {
    "administration/log.py",
    "metaq/agent/control.py",
    "ops/cli/metaq_contents.py",
    "metaq/consumer/fetcher.py",
}
"""Modules that read messages of `Fetched.readable`: tests/metaq/test_unreadable.py, tests/agent/test_control.py."""
OF_ARROW = {"metaq/tables.py", "spark/reader.py"}
"""Modules that build Arrow tables by `in_pieces`: tests/metaq/test_tables.py, tests/spark/test_readers.py."""
OF_ONE_BATCH = {
    "metaq/finding.py": "looks for one id, and skips what cannot be read",
    "metaq/kafka/kafka_log.py": "looks for a key in records, which are decoded when they are fetched",
    "metaq/server/figures.py": "looks at the time of a batch",
    "binlog/mirror/log_sink.py": "compares the columns of one batch at a time with the table",
    "spark/generations.py": "looks at the header of one frame",
    "spark/planner.py": "looks only for a gap",
}
OF_OWN_TOPICS = {
    "ops/demo/registration/secure_proof.py": "a topic that the demo alone writes to",
    "metaq/server/placement.py": "the notes of the server itself",
    "testing/log_progress.py": "the dead letters that a test's consumers have written",
}
PASSING_ON = {"metaq/kafka/kafka_log.py", "metaq/kafka/reader.py", "metaq/local.py", "metaq/server/log_api.py"}


def _fetching() -> dict[str, str]:
    texts = {str(path.relative_to(_ROOT)): path.read_text() for path in _ROOT.rglob("*.py")}
    return {name: text for name, text in texts.items() if _FETCH.search(text)}


def test_every_module_that_fetches_from_a_log_is_listed() -> None:
    known = OF_MESSAGES | OF_ARROW | OF_ONE_BATCH.keys() | OF_OWN_TOPICS.keys() | PASSING_ON
    assert known == _fetching().keys()


def test_modules_that_read_messages_skip_unreadable_ones() -> None:
    texts = _fetching()
    assert {name for name in OF_MESSAGES if ".readable()" not in texts[name]} == set()


def test_modules_that_build_arrow_tables_bound_unpacked_bytes() -> None:
    texts = _fetching()
    assert {name for name in OF_ARROW if "in_pieces(" not in texts[name]} == set()
