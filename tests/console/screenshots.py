"""Takes the pictures of the page that docs/images holds, of a made-up day.

    python -m tests.console.screenshots docs/images

They are for people; what the page has to look like is in test_browser.py. The fonts are those of this machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

import psycopg
from PIL import Image
from playwright.sync_api import Browser

from examples.trade_dashboard import figures
from tests.console import chromium
from tests.console.day import add_day
from tests.console.page_process import PageProcess
from txmsg.embedded import EmbeddedPostgres

_PARTS: Final = ("trade_service", "broker", "tailer", "metaq", "spark", "stock")
_MEASURES: Final = {"in_doubt": 0, "waiting": 37, "tailer_s": 0.021, "tailer_messages": 12}
_SETTLE_MS: Final = 6_000


class _Picture(NamedTuple):
    name: str
    size: tuple[int, int]
    scheme: Literal["dark", "light"]
    locale: str


_PICTURES: Final = (
    _Picture("trades-dark", (1920, 1080), "dark", "en-GB"),
    _Picture("trades-light", (1366, 768), "light", "zh-CN"),
)


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    path = chromium.find()
    assert path is not None, chromium.HOW_TO_INSTALL
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres(Path(name) / "postgres") as postgres:
        results, health = postgres.create_database("dashboard"), Path(name) / "health.json"
        with psycopg.connect(results, autocommit=True, connect_timeout=10) as connection:
            figures.create_tables(connection)
            add_day(connection, datetime.now(UTC))
        page = PageProcess(results, "--health", str(health), log=Path(name) / "page.log")
        page.start()
        writer = subprocess.Popen([sys.executable, "-m", "tests.console.day", results], stdout=subprocess.DEVNULL)
        try:
            with chromium.chromium(path) as browser:
                for picture in _PICTURES:
                    _take(browser, page.url, health, picture, target / f"{picture.name}.png")
        finally:
            writer.kill()
            writer.wait()
            page.kill()


def _take(browser: Browser, url: str, health: Path, picture: _Picture, target: Path) -> None:
    width, height = picture.size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=picture.scheme,
        locale=picture.locale,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_timeout(_SETTLE_MS)
    health.write_text(json.dumps({"parts": dict.fromkeys(_PARTS, True), "measures": _MEASURES}))
    page.wait_for_selector(':root[data-state="live"] part-state[part="broker"][data-state="up"]')
    page.screenshot(path=target)
    context.close()
    with Image.open(target) as taken:  # a palette: a third of the size
        taken.convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            target, optimize=True
        )


if __name__ == "__main__":
    main()
