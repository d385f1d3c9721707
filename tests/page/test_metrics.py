"""The metrics of a real page server."""

from __future__ import annotations

from http import HTTPStatus

import psycopg

from tests.metrics.scraping import got, require_catalogued, scrape
from tests.page.conftest import ShowPage
from tests.ports import own_port
from tests.waiting import until
from txmsg.metrics.catalogue import ExportingProcess


def test_page_server_serves_every_catalogued_metric(show_page: ShowPage) -> None:
    metrics = f"127.0.0.1:{own_port()}"
    with show_page("--http-listen", metrics) as shown:
        shown.page.bulletin()
        until(lambda: got(metrics, "/readyz")[0] == HTTPStatus.OK)
        before = scrape(metrics)
        require_catalogued(before, ExportingProcess.PAGE)
        assert before.value("txmsg_page_browsers") == 0
        assert before.value("txmsg_page_bulletin_bytes") > 0
        with shown.page.events() as events:
            next(events)
            assert scrape(metrics).value("txmsg_page_browsers") == 1
            next(events)
        found = until(lambda: now if (now := scrape(metrics)).value("txmsg_page_browsers") == 0 else None)
        assert found.value("txmsg_page_bulletins_total") > before.value("txmsg_page_bulletins_total")


def test_a_page_server_without_its_figures_is_alive_and_not_ready(show_page: ShowPage) -> None:
    metrics = f"127.0.0.1:{own_port()}"
    with show_page("--http-listen", metrics, "--stale-after", "1") as shown:
        until(lambda: got(metrics, "/readyz")[0] == HTTPStatus.OK)
        with psycopg.connect(shown.results, autocommit=True, connect_timeout=10) as connection:
            connection.execute("drop schema public cascade")
        _, why = until(lambda: found if (found := got(metrics, "/readyz"))[0] == 503 else None)
        assert why.startswith("no figures for ")
        assert got(metrics, "/livez") == (HTTPStatus.OK, "ok\n")
        assert scrape(metrics).value("txmsg_page_figures_age_seconds") > 1
