"""Builds the documentation site: `make docs`. Pages are the Markdown files of the repository, as they stand."""

import re

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "txmsg"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "txmsg"
html_copy_source = False
html_show_copyright = False
html_additional_pages = {"index": "start.html"}
templates_path = ["site"]

# The source directory is the repository, so that links between pages are the same on the site and in the repository.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "examples/**.md"]
exclude_patterns = [".*", "build", "tests", "benchmarks", "tools"]  # not searched for pages

myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page may skip a level of headings


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Makes the navigation from the index: its sections and links. A page that is linked nowhere is an error."""
    if page == root_doc:
        for section in re.split(r"^## ", source[0], flags=re.MULTILINE)[1:]:
            links = re.findall(r"\[([^]]+)\]\(([\w./-]+)\.md\)", section)
            pages = [f"{title} <{name}>" for title, name in links]
            source[0] += toctree(":hidden:", f":caption: {section.splitlines()[0]}", *pages)
    elif page == "docs/decisions/README":
        source[0] += toctree(":glob:", "0*")


def toctree(*lines: str) -> str:
    return "\n".join(["", "```{toctree}", *lines, "```", ""])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.add_lexer("mermaid", TextLexer)  # shown as text: drawing it takes a script from another site
