"""All words of the console: one catalogue per language, with a section for each page."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

_DIRECTORY: Final = Path(__file__).parent / "texts"


@cache
def texts(language: str) -> Mapping[str, str]:
    """Texts by SECTION.NAME; `{...}` is filled in where they are used."""
    found = tomllib.loads((_DIRECTORY / f"{language}.toml").read_text(encoding="utf-8"))
    return {f"{section}.{name}": text for section, values in found.items() for name, text in values.items()}
