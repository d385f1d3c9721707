"""The metrics of a page server."""

from __future__ import annotations

from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.ops.page.feed import BulletinFeed


def figures_of(feed: BulletinFeed, *, age_s: float, unready: str) -> Figures:
    """Return all figures of a page server. age_s: seconds since the last read."""
    figures = Figures(ExportingProcess.PAGE)
    figures.put("txmsg_ready", not unready)
    figures.put("txmsg_page_browsers", feed.readers)
    figures.put("txmsg_page_bulletins_total", feed.number)
    figures.put("txmsg_page_bulletin_bytes", len(feed.newest or b""))
    figures.put("txmsg_page_figures_age_seconds", age_s)
    return figures
