"""HTML from templates. Every value is text: it is escaped, and unprintable characters are shown as escapes.

The filter `as_typed` is the exception: values that forms send back are not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from txmsg.errors import printable
from txmsg.ops.console import shown
from txmsg.ops.console.texts import action_of, summary_of, texts
from txmsg.ops.page.language import LANGUAGES


def _printable(value: object) -> object:
    """Return a text with unprintable characters escaped: others' words may hold signs that turn the direction of
    writing.
    """
    return value if isinstance(value, Markup) else printable(str(value), lines=True)


def _as_typed(value: object) -> Markup:
    """Return a field's value unchanged, since it is posted back. Browsers read a carriage return as a newline."""
    return Markup(str(escape(value)).replace("\r", "&#13;"))


class Renderer:
    """Renders templates in one language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._texts = texts(language)
        self._environment = Environment(
            loader=PackageLoader("txmsg.ops.console"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_printable,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            as_typed=_as_typed,
            number=shown.number,
            short=shown.short,
            size=shown.size,
            percent=shown.percent,
            duration=partial(shown.duration, language=language),
            moment=shown.moment,
            ago=partial(shown.ago, language=language),
            summary=partial(summary_of, language=language),
            action=partial(action_of, language=language),
        )
        self._environment.globals.update(t=self.text, word=self.word, language=language, languages=LANGUAGES)
        # Not imported by each page: a block that is rendered alone does not import.
        for name in ("parts", "lists"):
            self._environment.globals[name] = self._environment.get_template(f"{name}.html").module

    def text(self, key: str, /, **values: object) -> str:
        """Return a text of the catalogue, filled in. Raises KeyError for an unknown one."""
        text = self._texts[key]
        return text.format(**values) if values else text

    def word(self, prefix: str, value: str) -> str:
        """Return the text for a word of a broker; the word itself if a newer broker uses one without a text."""
        return self._texts.get(prefix + value.replace(" ", "_"), value)

    def page(self, template: str, values: Mapping[str, Any]) -> str:
        """Return a document."""
        return self._environment.get_template(template).render(values)

    def block(self, template: str, block: str, values: Mapping[str, Any]) -> str:
        """Return one block of a document."""
        found = self._environment.get_template(template)
        for name in (template, *_parents(self._environment, template)):
            blocks = self._environment.get_template(name).blocks
            if block in blocks:
                return "".join(blocks[block](found.new_context(dict(values))))
        raise KeyError(f"{template} has no block {block}")


def _parents(environment: Environment, template: str) -> list[str]:
    """Return the template's parents: every page extends the layout alone."""
    return [] if template == "layout.html" else ["layout.html"]
