"""Screenshots of pages for docs/images; their contents are tested elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, Page

from tests.page.chromium import HOW_TO_INSTALL, chromium
from txmsg.ops.demo.browser import find_browser

_WAIT_MS_MAX: Final = 300_000


class Picture(NamedTuple):
    """A screenshot NAME.png of a page. path: of the page."""

    name: str
    size: tuple[int, int]
    scheme: Literal["dark", "light"] = "light"
    locale: str = "en-GB"
    path: str = "/"


@contextmanager
def camera() -> Iterator[Browser]:
    """Run a browser for screenshots."""
    path = find_browser()
    assert path is not None, HOW_TO_INSTALL
    with chromium(path) as browser:
        yield browser


def take(browser: Browser, url: str, picture: Picture, directory: Path, wait_shown: Callable[[Page], object]) -> None:
    """Take a screenshot once `wait_shown` returns."""
    width, height = picture.size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=picture.scheme,
        locale=picture.locale,
        reduced_motion="reduce",
    )
    context.set_default_timeout(_WAIT_MS_MAX)
    page = context.new_page()
    page.goto(url + picture.path)
    wait_shown(page)
    target = directory / f"{picture.name}.png"
    page.screenshot(path=target)
    context.close()
    with Image.open(target) as taken:  # a palette: a third of the size
        taken.convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            target, optimize=True
        )
