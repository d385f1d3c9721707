"""The contents of /metrics, as parsed by Prometheus' own library."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import until
from txmsg.metrics.catalogue import CATALOGUE, ExportingProcess, MetricKind

_ANSWER_S_MAX = 60.0


@dataclass(frozen=True)
class Scrape:
    """One answer. kinds: the type of each metric, by its name in the catalogue."""

    kinds: dict[str, str]
    helps: dict[str, str]
    values: dict[str, dict[frozenset[tuple[str, str]], float]]

    def value(self, sample: str, **labels: str) -> float:
        """Return the value of the one series with these labels; KeyError without one."""
        return self.values[sample][frozenset(labels.items())]

    def total(self, sample: str) -> float:
        """Return the sum of all series."""
        return sum(self.values.get(sample, {}).values())

    @property
    def series_count(self) -> int:
        return sum(map(len, self.values.values()))


def scrape(address: str) -> Scrape:
    status, text = got(address, "/metrics")
    assert status == HTTPStatus.OK, text
    found = Scrape({}, {}, {})
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found.kinds[name], found.helps[name] = family.type, family.documentation
        for sample in family.samples:
            found.values.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def got(address: str, path: str) -> tuple[int, str]:
    """Return status and text of a GET."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=_ANSWER_S_MAX) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def require_catalogued(found: Scrape, process: ExportingProcess) -> None:
    """Check that the scrape has exactly the catalogued metrics of this process, with their types and labels."""
    expected = {metric.name: metric for metric in CATALOGUE.values() if process in metric.processes}
    assert found.kinds == {name: metric.kind.value for name, metric in expected.items()}
    assert found.helps == {name: metric.meaning for name, metric in expected.items()}
    for name, metric in expected.items():
        sample = f"{name}_count" if metric.kind is MetricKind.HISTOGRAM else name
        for labels in found.values.get(sample, {}):
            assert {label for label, _ in labels} == set(metric.labels), name


def rises(address: str, sample: str, *, by: float = 1, since: Scrape, **labels: str) -> Scrape:
    """Wait until a series, or all of its name together, has risen by exactly this; return that scrape."""

    def risen() -> Scrape | None:
        found = scrape(address)
        before, now = (
            (since.value(sample, **labels), found.value(sample, **labels))
            if labels
            else (since.total(sample), found.total(sample))
        )
        assert now <= before + by, f"{sample} rose by {now - before}, not {by}"
        return found if now == before + by else None

    return until(risen, why=f"{sample} {labels} did not rise by {by}")
