"""docs/decisions: every decision has one form, and the index lists them all."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tools.decisions_page import FOLDER, WORDS_MAX, Decision, decision_of, decisions_page

SECTIONS = ["Context", "Decision", "Consequences"]
LINK = re.compile(r"\[(\d{4})\]\(((\d{4})-[\w-]+\.md)\)")
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("[0-9]*.md"))}


def faults_of_form(file: str, text: str) -> list[str]:
    """Return the faults of one decision by itself."""
    try:
        decision = decision_of(file, text)
    except ValueError as error:
        return [str(error)]
    sections = re.findall(r"^## (.*)", text, re.MULTILINE)
    words = len(re.sub(r"^\|.*", "", text, flags=re.MULTILINE).split())  # besides tables
    checks = {
        f"the number is not that of the file name: {decision.number}": file.startswith(f"{decision.number}-"),
        "the title ends in a period": not decision.title.endswith("."),
        f"the sections are not {SECTIONS}": sections == SECTIONS,
        "a section is empty": all(part.strip() for part in re.split(r"^## .*", text, flags=re.MULTILINE)[1:]),
        f"more than {WORDS_MAX} words: {words}": words <= WORDS_MAX,
    }
    return [f"{file}: {fault}" for fault, is_fine in checks.items() if not is_fine]


def faults_of_links(texts: Mapping[str, str]) -> list[str]:
    """Return links in heads that name no decision, or that the other decision does not return."""
    found = {file: decision_of(file, text) for file, text in texts.items()}
    faults = []
    for file, decision in found.items():
        for link, is_returned in (
            (decision.status if decision.status != "Accepted" else "", is_superseding),
            (decision.supersedes, is_superseded_by),
            (decision.amended_by, is_mentioning),
        ):
            for number, other, prefix in LINK.findall(link):
                if number != prefix or other not in found:
                    faults.append(f"{file}: [{number}]({other}) is not a decision")
                elif not is_returned(found[other], decision, texts[other]):
                    faults.append(f"{file}: {other} does not link back")
            if link and not LINK.search(link):
                faults.append(f"{file}: {link!r} has no link to a decision")
    return faults


def is_superseding(other: Decision, decision: Decision, _: str) -> bool:
    return f"({decision.file})" in other.supersedes


def is_superseded_by(other: Decision, decision: Decision, _: str) -> bool:
    return f"({decision.file})" in other.status


def is_mentioning(_: Decision, decision: Decision, text: str) -> bool:
    return f"({decision.file})" in text


@pytest.mark.parametrize("file", TEXTS)
def test_decision_has_the_form(file: str) -> None:
    assert faults_of_form(file, TEXTS[file]) == []


def test_each_number_is_used_once() -> None:
    assert len({file[:4] for file in TEXTS}) == len(TEXTS) > 100


def test_superseded_and_amended_decisions_are_linked_in_both_directions() -> None:
    assert faults_of_links(TEXTS) == []
    assert "Superseded by [0054]" in TEXTS["0001-libraries.md"]


def test_index_lists_every_decision() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d{4}) \| \[[^]]+\]\(([\w.-]+)\) \|", index, re.MULTILINE)
    assert sorted(listed) == [(file[:4], file) for file in TEXTS]
    assert index == decisions_page(), "run `make generate`"


FORM = """# 0200. A title

- Date: 2026-11-30
- Status: Accepted
- Area: Security

## Context

One.

## Decision

Two.

## Consequences

Three.
"""
LATER = FORM.replace("0200", "0201")


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("# 0200. A title", "# 200. A title", "does not begin with title, date"),
        ("# 0200. A title", "# 0201. A title", "the number is not that of the file name: 0201"),
        ("A title", "A title.", "the title ends in a period"),
        ("- Date: 2026-11-30\n", "", "does not begin with title, date"),
        ("2026-11-30", "2026-11-31", "has the invalid date 2026-11-31"),
        ("Accepted", "Proposed", "does not begin with title, date"),
        ("Accepted", "Superseded by 0201", "does not begin with title, date"),
        ("Security", "Everything", "has the unknown area 'Everything'"),
        ("## Context", "**Context.**", "does not begin with title, date"),
        ("## Consequences", "## Costs", "the sections are not"),
        ("Two.", "", "a section is empty"),
        ("Three.\n", "", "a section is empty"),
        ("Two.", "Two. " * WORDS_MAX, f"more than {WORDS_MAX} words: 621"),
    ],
)
def test_planted_fault_of_form_is_found(before: str, after: str, fault: str) -> None:
    assert faults_of_form("0200-a-title.md", FORM) == []
    [found] = faults_of_form("0200-a-title.md", FORM.replace(before, after))
    assert fault in found


@pytest.mark.parametrize(
    ("earlier_status", "earlier_line", "later_line", "faults"),
    [
        ("Superseded by [0201](0201-b.md)", "", "- Supersedes: [0200](0200-a.md)\n", []),
        ("Superseded by [0201](0201-b.md)", "", "", ["0200-a.md: 0201-b.md does not link back"]),
        ("Accepted", "", "- Supersedes: [0200](0200-a.md)\n", ["0201-b.md: 0200-a.md does not link back"]),
        ("Superseded by [0202](0202-c.md)", "", "", ["0200-a.md: [0202](0202-c.md) is not a decision"]),
        ("Superseded by [0202](0201-b.md)", "", "", ["0200-a.md: [0202](0201-b.md) is not a decision"]),
        ("Accepted", "- Amended by: [0201](0201-b.md)\n", "", ["0200-a.md: 0201-b.md does not link back"]),
        ("Accepted", "- Amended by: 0201\n", "", ["0200-a.md: '0201' has no link to a decision"]),
    ],
)
def test_planted_fault_of_links_is_found(
    earlier_status: str, earlier_line: str, later_line: str, faults: list[str]
) -> None:
    area = "- Area: Security\n"
    earlier = FORM.replace("Accepted", earlier_status).replace(area, area + earlier_line)
    later = LATER.replace(area, area + later_line)
    assert faults_of_links({"0200-a.md": earlier, "0201-b.md": later}) == faults
