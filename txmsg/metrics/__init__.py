"""Metrics: what an application registers for Prometheus. Brokers and servers export theirs with --http-listen.

Modules that do the work know none of this: they count in plain integers, once per batch or per failure, which the
`figures.py` of each process reads at a scrape.
"""

from txmsg.metrics.collector import ClientCollector

__all__ = ["ClientCollector"]
