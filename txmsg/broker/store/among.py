"""The names that a user may see, as a condition: others are neither in a page nor in where the next one begins."""

from __future__ import annotations


def among(column: str) -> str:
    """Of a query with the parameters `exact` and `prefixes`, the fields of Names."""
    return f"({column} = any(%(exact)s::text[]) or {column} ^@ any(%(prefixes)s::text[]))"
