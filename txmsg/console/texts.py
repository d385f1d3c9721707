"""All words of the console: one catalogue per language, with a section for each page.

What alerts say is the brokers', in English; another language has its own words for the built-in rules.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from txmsg.administration.alerts import ActiveAlert
from txmsg.broker.alerts.conditions import told

_NONE: Final[Mapping[str, str]] = {}
_DIRECTORY: Final = Path(__file__).parent / "texts"


@cache
def texts(language: str) -> Mapping[str, str]:
    """Texts by SECTION.NAME; `{...}` is filled in where they are used."""
    found = tomllib.loads((_DIRECTORY / f"{language}.toml").read_text(encoding="utf-8"))
    return {f"{section}.{name}": text for section, values in found.items() for name, text in values.items()}


@cache
def _rules(language: str) -> Mapping[str, Mapping[str, str]]:
    path = _DIRECTORY / f"alerts.{language}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def summary_of(alert: ActiveAlert, language: str) -> str:
    """What it says in this language; an operator's own rule says it as it was written."""
    text = _rules(language).get(alert.rule, _NONE).get("summary")
    return alert.summary if text is None else told(text, alert.labels, alert.value)


def action_of(alert: ActiveAlert, language: str) -> str:
    """What to do, likewise."""
    return _rules(language).get(alert.rule, _NONE).get("action", alert.action)
