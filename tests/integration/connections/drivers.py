"""Connections of each driver, as an application without SQLAlchemy opens them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiomysql
import aiosqlite
import asyncpg
import psycopg
import pymysql
from sqlalchemy import make_url

Connect = Callable[[], Any]

SYNC: Final = ("psycopg", "sqlite3", "pymysql")
ASYNC: Final = ("psycopg-async", "asyncpg", "aiosqlite", "aiomysql")
FIXTURE_OF: Final = {
    "psycopg": "database_url",
    "asyncpg": "database_url",
    "pymysql": "mariadb_url",
    "aiomysql": "mariadb_url",
}


def address_of(driver: str, request: Any, tmp_path: Path) -> str:
    """Return the address of a fresh database: a URL, or the path of a file."""
    fixture = FIXTURE_OF.get(driver.removesuffix("-async"))
    return str(tmp_path / "business.db") if fixture is None else request.getfixturevalue(fixture)


def connecting(driver: str, address: str) -> Connect:
    """Return a function that opens a connection, `async def` for asyncio."""

    async def connect_async() -> Any:
        match driver:
            case "psycopg-async":
                return await psycopg.AsyncConnection.connect(address)
            case "asyncpg":
                return await asyncpg.connect(address)
            case "aiosqlite":
                return await aiosqlite.connect(address)
            case _:
                return await aiomysql.connect(**_of_mariadb(address, "db"))

    def connect() -> Any:
        match driver:
            case "psycopg":
                return psycopg.connect(address)
            case "sqlite3":
                return sqlite3.connect(address)
            case _:
                return pymysql.connect(**_of_mariadb(address, "database"))

    return connect_async if driver in ASYNC else connect


def _of_mariadb(url: str, database: str) -> dict[str, Any]:
    parsed = make_url(url)
    given: dict[str, Any] = {
        "host": parsed.host,
        "port": parsed.port,
        "user": parsed.username,
        "password": parsed.password,
    }
    given |= {"unix_socket": parsed.query.get("unix_socket"), database: parsed.database}
    return {name: value for name, value in given.items() if value is not None}
