"""All words of the console: one catalogue per language, a section for each page. Knows no page."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

LANGUAGES: Final = {"en": "English", "zh": "中文"}
_DIRECTORY: Final = Path(__file__).parent / "texts"


@cache
def texts(language: str) -> Mapping[str, str]:
    """Texts by SECTION.NAME; `{...}` is filled in where they are used."""
    found = tomllib.loads((_DIRECTORY / f"{language}.toml").read_text(encoding="utf-8"))
    return {f"{section}.{name}": text for section, values in found.items() for name, text in values.items()}


def language_of(accepted: str) -> str:
    """The language that a browser prefers among ours, by its Accept-Language; English if it names none."""
    preferred: list[tuple[float, str]] = []
    for each in accepted.split(","):
        tag, _, weight = each.partition(";q=")
        try:
            preferred.append((float(weight or 1), tag.strip().lower()[:2]))
        except ValueError:
            continue
    best = sorted((each for each in preferred if each[1] in LANGUAGES), key=lambda each: -each[0])
    return best[0][1] if best else "en"
