"""The project of docs/how-to/django.md as files, on a database named by a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from tests.acceptance.user_project import ROOT, files_of

PAGE = ROOT / "docs" / "how-to" / "django.md"
_RUN_S_MAX = 120.0

# Django supports no pure Python driver of MySQL: PyMySQL replaces it, as in many projects.
_PYMYSQL = "import pymysql\npymysql.version_info = (2, 2, 7, 'final', 0)\npymysql.install_as_MySQLdb()\n"
_DRIVER = {"postgresql": "", "mariadb": _PYMYSQL, "mysql": _PYMYSQL}


class Shop:
    """A directory with the project. database_url: of SQLAlchemy; None for the SQLite file of the page."""

    def __init__(self, directory: Path, brokers: str, database_url: str | None = None) -> None:
        self.directory = directory
        (directory / "shop").mkdir(parents=True)
        (directory / "shop" / "__init__.py").touch()
        for name, text in files_of(PAGE).items():
            (directory / name).write_text(text, encoding="utf-8")
        settings = directory / "project.py"
        added = f'TXMSG = {{**TXMSG, "BROKERS": {brokers!r}}}\n'
        if database_url is not None:
            added += _DRIVER[make_url(database_url).get_backend_name()] + f"DATABASES = {_databases(database_url)!r}\n"
        settings.write_text(settings.read_text() + added, encoding="utf-8")
        self.manage("makemigrations", "shop")

    def manage(self, *args: str, ends_with: int = 0) -> str:
        """Return the output of `python manage.py ARGS`, both streams; warnings are errors."""
        done = self._run("-W", "error", "manage.py", *args, ends_with=ends_with)
        return done.stdout + done.stderr

    def python(self, *args: str, ends_with: int = 0) -> str:
        """Return the standard output of `python ARGS`."""
        return self._run(*args, ends_with=ends_with).stdout

    def _run(self, *args: str, ends_with: int) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *args],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_RUN_S_MAX,
        )
        assert done.returncode == ends_with, done.stdout + done.stderr
        return done

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": f"{self.directory}{os.pathsep}{ROOT}", "DJANGO_SETTINGS_MODULE": "project"}


def _databases(database_url: str) -> dict[str, Any]:
    url = make_url(database_url)
    engine = "postgresql" if url.get_backend_name() == "postgresql" else "mysql"
    database: dict[str, Any] = {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": url.database,
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        "HOST": url.host or url.query.get("host") or "",
        "PORT": url.port or url.query.get("port") or "",
        "ATOMIC_REQUESTS": True,
    }
    if "unix_socket" in url.query:
        database["HOST"] = url.query["unix_socket"]
    return {"default": database}
