"""The words of the console: one catalogue per language, with a section for each page.

What alerts say is the brokers', in English; the checks have words for the built-in ones in another language.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from txmsg.administration.alerts import ActiveAlert
from txmsg.checks.catalogue import BY_ALERT
from txmsg.checks.check import words_of
from txmsg.checks.texts import for_prometheus, told

_DIRECTORY: Final = Path(__file__).parent / "texts"


@cache
def texts(language: str) -> Mapping[str, str]:
    """Return the texts by SECTION.NAME; `{...}` is filled in where they are used."""
    found = tomllib.loads((_DIRECTORY / f"{language}.toml").read_text(encoding="utf-8"))
    return {f"{section}.{name}": text for section, values in found.items() for name, text in values.items()}


def summary_of(alert: ActiveAlert, language: str) -> str:
    """Return the alert's summary in this language; for an operator's own rule as it was written."""
    check = BY_ALERT.get(alert.rule)
    if check is None or language == "en":
        return alert.summary
    return told(for_prometheus(words_of(check, language).what), alert.labels, alert.value)


def action_of(alert: ActiveAlert, language: str) -> str:
    """Return the advised action in this language; for an operator's own rule as it was written."""
    check = BY_ALERT.get(alert.rule)
    return alert.action if check is None or language == "en" else words_of(check, language).fix
