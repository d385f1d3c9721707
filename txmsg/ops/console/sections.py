"""The sections of the console: the entries of the navigation, and their keyboard shortcuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the navigation. `nav.KEY` is its text; `g` followed by `letter` opens it."""

    key: str
    path: str
    """The path below the database."""
    letter: str
    heading: str
    """The heading, text `nav.HEADING`, above the first entry that has it; empty: none."""


SECTIONS: Final = (
    Section("overview", "", "o", ""),
    Section("topics", "/topics", "t", "messages"),
    Section("groups", "/groups", "g", "messages"),
    Section("dead_letters", "/dead-letters", "d", "messages"),
    Section("halves", "/halves", "h", "messages"),
    Section("find", "/messages", "m", "messages"),
    Section("brokers", "/brokers", "b", "system"),
    Section("mirrors", "/mirrors", "l", "system"),
    Section("settings", "/settings", "s", "system"),
    Section("alerts", "/alerts", "a", "system"),
    Section("audit", "/audit", "u", "system"),
    Section("operations", "/operations", "p", "system"),
)
