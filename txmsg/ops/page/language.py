"""The languages of pages."""

from __future__ import annotations

from typing import Final

LANGUAGES: Final = {"en": "English", "zh": "中文"}


def language_of(accepted: str) -> str:
    """Return the language that a browser prefers among ours, by its Accept-Language; English if it names none."""
    preferred: list[tuple[float, str]] = []
    for each in accepted.split(","):
        tag, _, weight = each.partition(";q=")
        try:
            preferred.append((float(weight or 1), tag.strip().lower()[:2]))
        except ValueError:
            continue
    best = sorted((each for each in preferred if each[1] in LANGUAGES), key=lambda each: -each[0])
    return best[0][1] if best else "en"
