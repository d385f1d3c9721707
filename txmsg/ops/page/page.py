"""The parts of a page, and its HTML. Knows no HTTP and no figures."""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from string import Template
from typing import Final

ASSETS: Final = Path(__file__).parent / "assets"
"""The files that every page loads: the elements, their style, and uPlot, which draws lines."""

_DOCUMENT: Final = "document.html"
_BODY: Final = "body.html"


@dataclass(frozen=True, slots=True)
class BilingualText:
    """A text in English and in Chinese. The browser fills in `{...}`."""

    en: str
    zh: str


_WORDS: Final = {
    "live": BilingualText("Live", "实时"),
    "ago": BilingualText("{age} ago", "{age}前"),
    "waiting": BilingualText("Waiting for the first figures", "等待首批数据"),
    "stale": BilingualText("No new figures for {age}", "已 {age} 没有新数据"),
    "lost": BilingualText("No connection to the server for {age}", "与服务器断开已 {age}"),
    "down": BilingualText("{parts} down", "{parts} 已停止"),
    "unknown": BilingualText("State of {parts} unknown", "{parts} 状态未知"),
    "and": BilingualText(", ", "、"),
    "up": BilingualText("up", "正常"),
    "language": BilingualText("中文", "English"),
    "theme_system": BilingualText("Theme: as the system", "主题：跟随系统"),
    "theme_light": BilingualText("Theme: light", "主题：浅色"),
    "theme_dark": BilingualText("Theme: dark", "主题：深色"),
    "others": BilingualText("{count} others", "其余 {count} 个"),
    "part_figures": BilingualText("Figures", "统计库"),
    "no_script": BilingualText("This page needs JavaScript.", "此页面需要 JavaScript。"),
}
"""The words of every page. `part_NAME` is the title of a part; a part without one is shown by its name."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A directory with body.html, made of the kit's elements, and page.css; and all its words.

    `words` has `title`, and the names that `data-word` uses in body.html.
    """

    directory: Path
    words: Mapping[str, BilingualText]

    @cached_property
    def release(self) -> str:
        """A hash of all files that a browser loads: a browser with an older release loads the page again."""
        digest = hashlib.sha256(self._json_of_words().encode())
        for directory in (ASSETS, self.directory):
            for path in sorted(filter(Path.is_file, directory.rglob("*"))):
                digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def html(self) -> str:
        """Return the document, in English until the browser has chosen a language."""
        words = _WORDS | dict(self.words)
        return Template((ASSETS / _DOCUMENT).read_text(encoding="utf-8")).substitute(
            title=html.escape(words["title"].en),
            no_script=html.escape(f"{words['no_script'].en} {words['no_script'].zh}"),
            words=self._json_of_words().replace("<", "\\u003c"),  # it stands within a <script>
            release=self.release,
            body=(self.directory / _BODY).read_text(encoding="utf-8"),
        )

    def _json_of_words(self) -> str:
        return json.dumps({key: asdict(text) for key, text in (_WORDS | dict(self.words)).items()}, ensure_ascii=False)
