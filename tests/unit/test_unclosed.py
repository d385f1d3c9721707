"""What the tests themselves are told of connections that are left open, on each Python."""

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


def test_a_connection_left_open_is_named_with_its_database_and_where_it_was_opened(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as told, none_left(within_s=0):
        kept = sqlite3.connect(tmp_path / "shop.db")
    assert "shop.db" in str(told.value)
    assert "sqlite3.connect(tmp_path" in str(told.value)
    assert "_pytest" not in str(told.value)
    kept.close()


def test_so_is_one_that_nothing_refers_to(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"lost\.db"), none_left(within_s=0):
        sqlite3.connect(tmp_path / "lost.db")


def test_so_is_one_in_the_pool_of_an_engine(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'pooled.db'}")
    with pytest.raises(AssertionError, match=r"pooled\.db"), none_left(within_s=0), engine.connect():
        pass
    engine.dispose()


async def test_those_that_are_closed_are_not(tmp_path: Path) -> None:
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


def test_a_connection_to_postgresql_left_open_is_named_likewise(database_url: str) -> None:
    with pytest.raises(AssertionError) as told, none_left(within_s=0):
        kept = psycopg.connect(database_url)
    assert str(psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]) in str(told.value)
    assert "psycopg.connect(database_url)" in str(told.value)
    kept.close()
    with none_left():
        psycopg.connect(database_url).close()


def test_one_that_was_open_before_is_not(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")), none_left(within_s=0):
        pass


def test_one_that_is_collected_warns_and_says_where_it_was_opened(tmp_path: Path) -> None:
    gc.collect()
    kept: sqlite3.Connection | None = sqlite3.connect(tmp_path / "shop.db")
    assert "sqlite3.Connection object" in repr(kept)
    kept = None
    with pytest.warns(ResourceWarning, match="unclosed database") as told:
        gc.collect()
    texts = [str(each.message) for each in told]
    assert any("unclosed database" in text and "shop.db" in text and "opened at" in text for text in texts), texts
