"""Texts of checks, with fields: `group {group} is {value:duration} behind`.

A field is a label, or `value` in one of the forms duration, share and size. Texts of operators' rules, and texts for
Prometheus, have its `{{ }}` instead, which it or `told` fills in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from txmsg.metrics.catalogue import GROUP, TOPIC
from txmsg.runtime.durations import shown_duration

LABELS: Final = {"group": GROUP, "topic": TOPIC}
"""Short names of labels in texts."""
VALUE: Final = "value"

_FIELD: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_OF_PROMETHEUS: Final = re.compile(r"\{\{ \$(?:value|labels\.(\w+))(?: \| (\w+))? \}\}")


class CheckTexts(NamedTuple):
    """The texts of a check in one language."""

    what: str
    why: str
    fix: str


@cache
def chinese() -> Mapping[str, CheckTexts]:
    """Return the Chinese texts by the name of a check. English texts are in the checks themselves."""
    found = tomllib.loads((Path(__file__).parent / "texts.zh.toml").read_text(encoding="utf-8"))
    return {name: CheckTexts(*words) for name, words in found.items()}


def fields_in(text: str) -> set[str]:
    """Return the names of the fields of a text."""
    return {name for name, _ in _FIELD.findall(text)}


def filled(text: str, fields: Mapping[str, object]) -> str:
    """Return a text with its fields filled in. Raises KeyError for a missing field."""

    def of(field: re.Match[str]) -> str:
        name, form = field.groups()
        value = fields[LABELS.get(name, name)]
        return _FORMS[form](value) if isinstance(value, int | float) else str(value)

    return _FIELD.sub(of, text)


def documented(text: str) -> str:
    """Return a text for documentation, with fields in capitals."""
    return _FIELD.sub(lambda field: field[1].upper(), text)


def sentence(text: str) -> str:
    """Return a text as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "?")) else ".")


def for_prometheus(text: str) -> str:
    """Return a text with its fields in Prometheus' form."""

    def of(field: re.Match[str]) -> str:
        name, form = field.groups()
        if name != VALUE:
            return f"{{{{ $labels.{LABELS.get(name, name)} }}}}"
        how, unit = _OF_FORM[form]
        return f"{{{{ $value{how and f' | {how}'} }}}}{unit}"

    return _FIELD.sub(of, text)


def told(text: str, labels: Mapping[str, str], value: float) -> str:
    """Return a text with Prometheus' fields filled in as Prometheus does."""

    def of(field: re.Match[str]) -> str:
        label, form = field.groups()
        return labels.get(label, "") if label else _HUMANIZED[form or ""](value)

    return _OF_PROMETHEUS.sub(of, text)


def _binary(value: float) -> str:
    for unit in ("", "Ki", "Mi", "Gi"):
        if abs(value) < 1024:
            return f"{value:.4g}{unit}"
        value /= 1024
    return f"{value:.4g}Ti"


_OF_FORM: Final[Mapping[str | None, tuple[str, str]]] = {
    None: ("", ""),
    "duration": ("humanizeDuration", ""),
    "share": ("humanizePercentage", ""),
    "size": ("humanize1024", "B"),
}
_HUMANIZED: Final[Mapping[str, Callable[[float], str]]] = {
    "": lambda value: f"{value:g}" if value != round(value) else f"{value:.0f}",
    "humanizeDuration": lambda value: shown_duration(round(value)),
    "humanizePercentage": lambda value: f"{value * 100:.4g}%",
    "humanize1024": _binary,
}
_FORMS: Final[Mapping[str | None, Callable[[float], str]]] = {
    form: lambda value, how=how, unit=unit: _HUMANIZED[how](value) + unit  # type: ignore[misc]
    for form, (how, unit) in _OF_FORM.items()
}
