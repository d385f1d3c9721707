"""The setting TXMSG: findings of `manage.py check` by id, and the documentation of each name."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.contrib.django_project import PAGE, Shop
from txmsg.contrib.django.checks import FINDINGS
from txmsg.contrib.django.configuration import OPTIONS

_POSTGRES = "django.db.backends.postgresql"

# Each: the setting TXMSG, and the findings.
GIVEN: dict[str, tuple[str, list[str]]] = {
    "missing": ("None", ["E001"]),
    "list": ("['shop']", ["E001"]),
    "no group": ("{}", ["E002"]),
    "unknown names": ("{'GROUP': 'shop', 'BROKER': 'a:1', 1: 2}", ["E003", "E003"]),
    "name with blanks": ("{'GROUP': 'the shop'}", ["E004"]),
    "group of none": ("{'GROUP': None}", ["E004"]),
    "brokers without a port": ("{'GROUP': 'shop', 'BROKERS': 'localhost'}", ["E004"]),
    "tls as a number": ("{'GROUP': 'shop', 'TLS': 1.5}", ["E004"]),
    "token that is none": ("{'GROUP': 'shop', 'TOKEN': 'secret'}", ["E004"]),
    "token as a number": ("{'GROUP': 'shop', 'TOKEN': 7}", ["E004"]),
    "timeout of 0": ("{'GROUP': 'shop', 'TIMEOUT_S': 0}", ["E004"]),
    "concurrency as text": ("{'GROUP': 'shop', 'CONCURRENCY': '4'}", ["E004"]),
    "concurrency as bool": ("{'GROUP': 'shop', 'CONCURRENCY': True}", ["E004"]),
    "visibility of a day": ("{'GROUP': 'shop', 'VISIBILITY_TIMEOUT_S': 86400}", ["E004"]),
    "close without an end": ("{'GROUP': 'shop', 'CLOSE_TIMEOUT_S': float('inf')}", ["E004"]),
    "several at once": ("{'BROKER': 'a:1', 'CONCURRENCY': 0}", ["E002", "E003", "E004"]),
    "all right": (
        "{'GROUP': 'shop', 'BROKERS': ['a:1', 'b:1'], 'TLS': Path('ca.pem'), 'TOKEN': lambda: 1 / 0, "
        "'TIMEOUT_S': timedelta(seconds=5), 'CONCURRENCY': 4, 'VISIBILITY_TIMEOUT_S': 5, 'CLOSE_TIMEOUT_S': 0}",
        [],
    ),
    "token to a broker here": ("{'GROUP': 'shop', 'BROKERS': '127.0.0.1:1', 'TOKEN': Path('t'), 'TLS': False}", []),
    "token in the open": ("{'GROUP': 'shop', 'BROKERS': 'a:1', 'TOKEN': Path('t'), 'TLS': False}", ["E008"]),
    "token as the variable says": ("{'GROUP': 'shop', 'BROKERS': 'a:1', 'TOKEN': Path('t')}", ["W002"]),
    "memory": ("{'GROUP': 'shop', 'BROKERS': 'memory:', 'TOKEN': Path('t')}", ["W003"]),
}
# Each: the databases, and the findings.
DATABASES: dict[str, tuple[dict[str, object], list[str]]] = {
    "long alias": ({"a" * 127: {"ENGINE": "django.db.backends.sqlite3", "NAME": "x"}}, ["E005"]),
    "alias with a blank": ({"my orders": {"ENGINE": "django.db.backends.sqlite3", "NAME": "x"}}, ["E005"]),
    "sqlite in memory": ({"other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, ["E007"]),
    "kept out by a router": ({"kept_out": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, []),
    "oracle": ({"other": {"ENGINE": "foreign"}}, ["E006"]),
    "small pool": (
        {"other": {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"pool": {"max_size": 3}}}},
        ["W001"],
    ),
    "pool of four": ({"other": {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"pool": True}}}, []),
    "none": ({}, []),
}
_CODE = """
import sys, types
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch
import django; django.setup()
from django.core.checks import run_checks
from django.db.backends.dummy import base
from django.db.utils import ConnectionHandler
from django.test import override_settings
from txmsg.contrib.django import checks

foreign = sys.modules["foreign"] = types.ModuleType("foreign")
sys.modules["foreign.base"] = types.ModuleType("foreign.base")
sys.modules["foreign.base"].DatabaseWrapper = type("DatabaseWrapper", (base.DatabaseWrapper,), {"vendor": "oracle"})
foreign.__path__ = []

class KeptOut:
    def allow_migrate(self, db, app_label, **hints):
        return db != "kept_out"

def found():
    ids = [each.id for each in run_checks(include_deployment_checks=True)]
    return [each.removeprefix("txmsg.") for each in ids if each.startswith("txmsg.")]

ids = {}
for name, given in GIVEN.items():
    with override_settings(TXMSG=given):
        ids[name] = found()
for name, databases in DATABASES.items():
    default = {"ENGINE": "django.db.backends.sqlite3", "NAME": "x"}
    with (
        override_settings(DATABASE_ROUTERS=[KeptOut()]),
        patch.object(checks, "connections", ConnectionHandler({"default": default, **databases})),
    ):
        ids[name] = found()
print(ids)
"""


def test_checks_find_each_fault_by_its_id(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "project", "localhost:1")
    given = ", ".join(f"{name!r}: {text}" for name, (text, _) in GIVEN.items())
    databases = {name: each for name, (each, _) in DATABASES.items()}
    code = _CODE.replace("GIVEN.items()", f"{{{given}}}.items()").replace("DATABASES.items()", f"{databases!r}.items()")
    found = ast.literal_eval(shop.python("-c", code))
    assert found == {name: ids for name, (_, ids) in (GIVEN | DATABASES).items()}
    assert {f"txmsg.{each}" for ids in found.values() for each in ids} == set(FINDINGS)


def test_check_command_reports_faults_with_their_fixes(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "project", "localhost:1")
    assert "no issues" in shop.manage("check")
    settings = shop.directory / "project.py"
    settings.write_text(settings.read_text() + 'TXMSG["CONCURENCY"] = 8\n')
    said = shop.manage("check", ends_with=1)
    assert "(txmsg.E003) TXMSG has no 'CONCURENCY'" in said
    assert f"HINT: there are {', '.join(OPTIONS)}" in said


def test_page_links_to_the_table_of_settings() -> None:
    assert "../settings.md#txmsg-of-a-django-project" in PAGE.read_text()
