"""Reports of unclosed connections to the tests themselves, on each Python."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import closing
from pathlib import Path

import aiosqlite
import psycopg
import pytest
from sqlalchemy import create_engine

from tests.unclosed import none_left


def test_an_open_connection_is_named_with_its_database_and_origin(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as told, none_left(within_s=0):
        kept = sqlite3.connect(tmp_path / "shop.db")
    assert "shop.db" in str(told.value)
    assert "sqlite3.connect(tmp_path" in str(told.value)
    assert "_pytest" not in str(told.value)
    kept.close()


def test_an_unreferenced_open_connection_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"lost\.db"), none_left(within_s=0):
        sqlite3.connect(tmp_path / "lost.db")


def test_an_open_connection_in_an_engine_pool_is_named(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'pooled.db'}")
    with pytest.raises(AssertionError, match=r"pooled\.db"), none_left(within_s=0), engine.connect():
        pass
    engine.dispose()


async def test_closed_connections_are_not_named(tmp_path: Path) -> None:
    with none_left():
        engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
        with engine.connect():
            pass
        engine.dispose()
        with closing(sqlite3.connect(tmp_path / "shop.db")):
            pass
        async with aiosqlite.connect(tmp_path / "shop.db"):
            pass
        with pytest.raises(sqlite3.OperationalError):
            sqlite3.connect(tmp_path / "absent" / "shop.db")


def test_an_open_connection_to_postgresql_is_named(database_url: str) -> None:
    with pytest.raises(AssertionError) as told, none_left(within_s=0):
        kept = psycopg.connect(database_url)
    assert str(psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]) in str(told.value)
    assert "psycopg.connect(database_url)" in str(told.value)
    kept.close()
    with none_left():
        psycopg.connect(database_url).close()


def test_a_connection_opened_before_the_test_is_not_named(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")), none_left(within_s=0):
        pass


def test_a_garbage_collected_open_connection_warns_with_its_origin(tmp_path: Path) -> None:
    gc.collect()
    kept: sqlite3.Connection | None = sqlite3.connect(tmp_path / "shop.db")
    assert "sqlite3.Connection object" in repr(kept)
    kept = None
    with pytest.warns(ResourceWarning, match="unclosed database") as told:
        gc.collect()
    texts = [str(each.message) for each in told]
    assert any("unclosed database" in text and "shop.db" in text and "opened at" in text for text in texts), texts
