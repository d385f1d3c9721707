"""PostgreSQL settings that ignore the needs of txmsg, drawn from the seed. Brokers must work with them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql

from tests.chaos.tables import pinned

_VALUES: Mapping[str, Sequence[str]] = {
    "DateStyle": ("German", "SQL, DMY", "Postgres, MDY"),
    "TimeZone": ("Asia/Kathmandu", "America/St_Johns", "Antarctica/Troll"),
    "client_encoding": ("LATIN1", "WIN1252", "SQL_ASCII"),
    "default_transaction_isolation": ("serializable", "repeatable read"),
    "standard_conforming_strings": ("off",),
    "search_path": ("pg_temp", "information_schema", '"$user"'),
    "statement_timeout": ("20ms", "100ms"),
}
_CHOSEN_SHARE = 0.6


def draw(seed: int) -> dict[str, str]:
    """Draw some of the settings."""
    rng = random.Random(f"settings {seed}")
    return {name: rng.choice(values) for name, values in _VALUES.items() if rng.random() < _CHOSEN_SHARE}


def impose(url: str, settings: Mapping[str, str], *, seed: int, roles: Sequence[str] = ()) -> None:
    """Apply settings to each new session: of the whole database, or only of these roles."""
    rng = random.Random(f"roles {seed}")
    with psycopg.connect(pinned(url), autocommit=True) as connection:
        database = sql.SQL("alter database {}").format(sql.Identifier(connection.info.dbname))
        for name, value in settings.items():
            of = database
            if roles and rng.random() < 0.5:
                of = sql.SQL("alter role {}").format(sql.Identifier(rng.choice(roles)))
            # A search_path is a list of names, which one literal would make one name.
            shown = sql.SQL(value) if name == "search_path" else sql.Literal(value)
            connection.execute(sql.SQL("{} set {} to {}").format(of, sql.Identifier(name), shown))
