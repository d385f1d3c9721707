"""Writes the Markdown pages of the project as HTML, and fails on a link to what does not exist: file, heading, picture.

python tools/docs.py DIRECTORY
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md")
STYLE = """
body { max-width: 60em; margin: 2em auto; padding: 0 1em; font: 16px/1.5 sans-serif; }
pre { padding: 1em; overflow: auto; background: #f4f4f4; } code { font-size: 90%; background: #f4f4f4; }
table { border-collapse: collapse; } td, th { border: 1px solid #ccc; padding: .3em .6em; text-align: left; }
"""


class Page:
    """One Markdown file, parsed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parser = MarkdownIt("commonmark").enable("table")
        self._tokens = self._parser.parse(path.read_text())
        self.title = path.stem
        self.anchors: set[str] = set()
        for opening, inline in zip(self._tokens, self._tokens[1:], strict=False):
            if opening.type == "heading_open":
                anchor = anchor_of(inline.content)
                self.anchors.add(anchor)
                opening.attrSet("id", anchor)
                if opening.tag == "h1":
                    self.title = inline.content

    def links(self) -> Iterator[Token]:
        """Every link, to be read or changed."""
        return self._inline("link_open")

    def pictures(self) -> set[Path]:
        """The files that it shows."""
        return {self.path.parent / str(each.attrGet("src")) for each in self._inline("image")}

    def _inline(self, kind: str) -> Iterator[Token]:
        return (token for block in self._tokens for token in block.children or () if token.type == kind)

    def html(self) -> str:
        """The page with links between pages pointing to their HTML."""
        for link in self.links():
            target = str(link.attrGet("href"))
            if "://" not in target:
                link.attrSet("href", re.sub(r"\.md(?=#|$)", ".html", target))
        body = self._parser.renderer.render(self._tokens, self._parser.options, {})
        head = f'<meta charset="utf-8"><title>{html.escape(self.title)}</title><style>{STYLE}</style>'
        return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}</body></html>\n'


def anchor_of(heading: str) -> str:
    """The name by which others link to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_links(pages: dict[Path, Page]) -> list[str]:
    """A line for each link that leads nowhere. Links to other sites are not followed."""
    broken = []
    for page in pages.values():
        broken += [
            f"{page.path.relative_to(ROOT)}: there is no {each}" for each in page.pictures() if not each.exists()
        ]
        for link in page.links():
            href = str(link.attrGet("href"))
            if "://" in href or href.startswith("mailto:"):
                continue
            name, _, anchor = href.partition("#")
            target = (page.path.parent / name).resolve() if name else page.path
            if not target.exists():
                broken.append(f"{page.path.relative_to(ROOT)}: there is no {name}")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{page.path.relative_to(ROOT)}: {target.relative_to(ROOT)} has no heading #{anchor}")
    return broken


def main() -> int:
    """Exit status 1 if a link is broken; the pages are written all the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the HTML goes")
    directory: Path = parser.parse_args().directory
    pages = {path: Page(path) for pattern in PAGES for path in sorted(ROOT.glob(pattern))}
    broken = broken_links(pages)
    for path, page in pages.items():
        written = directory / path.relative_to(ROOT).with_suffix(".html")
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(page.html())
        for picture in page.pictures():
            if picture.exists():
                copied = written.parent / picture.relative_to(path.parent)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(picture, copied)
    print(f"{len(pages)} pages in {directory}; begin with {directory / 'README.html'}")
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
