"""The pure parts of tools/fresh_system: its environment, its parsers, and the page that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fresh_system.__main__ import listed
from tools.fresh_system.circumstances import CIRCUMSTANCES, LONG
from tools.fresh_system.package_index import passed_environment, passed_files
from tools.fresh_system.place import USERS
from tools.fresh_system.processes import TIMED_OUT, mounted_below, run
from tools.fresh_system.record import DatabaseRun, Met, Run, counts_of, load, page_of, save, skips_of, summary_of

PAGE = Path(__file__).parents[2] / "docs/tested-on.md"
ENDED = [
    "SKIPPED [2] tests/kafka/test_a.py:12: no java: install it",
    "SKIPPED [1] tests/kafka/test_b.py: no java: install it",
    "SKIPPED [1] tests/page/test_c.py:7: no browser",
    "FAILED tests/unit/test_d.py::test_in - assert 'took 3 failed in 2.0s' == ''",
    "= 22 failed, 6448 passed, 4 skipped, 1 warning, 1 error in 462.05s (0:07:42) =",
    "make: *** [Makefile:76: test] Error 1",
]


def a_run(command: str = "make test", *, python: str = "3.13.5", commit: str = "0123456") -> Run:
    return Run(
        system="Debian 13",
        python=python,
        command=command,
        commit=commit,
        date="2026-11-29",
        is_passed=True,
        seconds=462,
        summary="6,448 passed",
        skips={"no java": 3},
    )


def a_circumstance(name: str = "home-unset", *, root: float | None = 12.4, end: str = "") -> Met:
    return Met(
        system="Debian 13",
        python="3.13.5",
        name=name,
        meaning=f"{name} | as it is",
        commit="0123456",
        date="2026-11-29",
        users=30,
        results={"root": root},
        end=end,
    )


def on_a_database(version: str = "15.19", *, database: str = "PostgreSQL", commit: str = "0123456") -> DatabaseRun:
    return DatabaseRun(
        database=database,
        version=version,
        part="mirror",
        python="3.13.5",
        commit=commit,
        date="2026-11-29",
        is_passed=False,
        seconds=101,
        summary="1 failed, 106 passed",
        skips={"no java": 2},
    )


def test_counts_are_those_of_the_last_line_of_pytest() -> None:
    assert counts_of(ENDED) == {"failed": 22, "passed": 6448, "skipped": 4, "warning": 1, "error": 1}
    assert summary_of(ENDED) == "22 failed, 6,448 passed, 4 skipped, 1 warning, 1 error"


def test_output_without_counts_is_summarized_by_its_last_line() -> None:
    assert counts_of(["12 passed users", "all well", ""]) == {}
    assert summary_of(["12 passed users", "all well", ""]) == "all well"
    assert summary_of([]) == "no output"


def test_skips_are_counted_by_reason() -> None:
    assert skips_of(ENDED) == {"no java: install it": 3, "no browser": 1}


def test_a_run_replaces_only_its_own_row(tmp_path: Path) -> None:
    page = tmp_path / "tested.md"
    for row in (
        a_run("make demo"),
        a_run(),
        a_run(python="3.12.1"),
        a_circumstance(),
        a_circumstance("no-shm"),
        a_run(commit="89abcde", python="3.13.6"),
        a_circumstance(root=None),
    ):
        save(page, row)
    runs, met, databases = load(page)
    assert databases == []
    assert [(run.python, run.command, run.commit) for run in runs] == [
        ("3.12.1", "make test", "0123456"),
        ("3.13.5", "make demo", "0123456"),
        ("3.13.6", "make test", "89abcde"),
    ]
    assert [(row.name, row.is_passed) for row in met] == [("home-unset", False), ("no-shm", True)]
    assert page.read_text(encoding="utf-8") == page_of(runs, met)


def test_a_run_on_a_database_replaces_the_one_on_an_earlier_patch_version(tmp_path: Path) -> None:
    page = tmp_path / "tested.md"
    save(page, a_run())
    for row in (
        on_a_database("11.4.5", database="MariaDB"),
        on_a_database("10.11.18", database="MariaDB"),
        on_a_database("18.6"),
        on_a_database("15.18"),
        on_a_database("15.19", commit="89abcde"),
    ):
        save(page, row)
    runs, met, databases = load(page)
    assert (runs, met) == ([a_run()], [])
    assert [(row.version, row.commit) for row in databases] == [
        ("15.19", "89abcde"),
        ("18.6", "0123456"),
        ("10.11.18", "0123456"),
        ("11.4.5", "0123456"),
    ]
    lines = page.read_text(encoding="utf-8").splitlines()
    result = "**failed** | 1 min 41 s | 1 failed, 106 passed | 3.13.5 | `89abcde` | 2026-11-29"
    assert f"| PostgreSQL 15.19 | mirror | {result} |" in lines
    assert "| MariaDB 11.4.5 | mirror | 2 | no java |" in lines


def test_page_shows_results_and_reasons() -> None:
    page = page_of([a_run()], [a_circumstance(), a_circumstance("no-shm", root=None)])
    for line in (
        "| Debian 13 | 3.13.5 | `make test` | passed | 7 min 42 s | 6,448 passed | `0123456` | 2026-11-29 |",
        "| 3 | no java |",
        "| home-unset \\| as it is | 12 s | 30 | `0123456` | 2026-11-29 |",
        "| no-shm \\| as it is | **failed** | 30 | `0123456` | 2026-11-29 |",
    ):
        assert line in page.splitlines()


def test_the_page_is_generated_from_its_json_file() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_of(*load(PAGE))


def test_names_are_parsed_in_the_order_in_which_they_are_known() -> None:
    parse = listed(["demo", "test", "lint"])
    assert parse("lint,demo") == ["demo", "lint"]
    assert parse("all") == ["demo", "test", "lint"]
    assert parse("none") == []
    with pytest.raises(Exception, match="'chaos' is none of demo, test, lint"):
        parse("demo,chaos")


def test_only_variables_of_pip_and_git_are_passed() -> None:
    given = {"PIP_CERT": "/c", "https_proxy": "p", "NO_PROXY": "n", "SSL_CERT_FILE": "/c", "GIT_SSL_CAINFO": "/c"}
    others = {"PIP_CACHE_DIR": "/cache", "PATH": "/bin", "TOKEN": "t", "PIP_USER": "1", "PYTHONPATH": "/p"}
    assert passed_environment(given | others) == given


def test_files_named_in_pip_settings_are_passed(tmp_path: Path) -> None:
    certificates, wheels = tmp_path / "ca.pem", tmp_path / "wheels"
    certificates.touch()
    wheels.mkdir()
    settings = tmp_path / ".config/pip/pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[global]\ncert = {certificates}\nindex-url = https://index.example/simple\n")
    files = passed_files({"PIP_FIND_LINKS": f"{wheels} /missing/wheels"}, tmp_path)
    assert (
        files.items()
        >= {
            str(settings): "/etc/pip-of-user.conf",
            str(certificates): str(certificates),
            str(wheels): str(wheels),
        }.items()
    )
    assert "/missing/wheels" not in files


def test_a_directory_in_which_something_is_mounted_is_found() -> None:
    mounts = ["proc /proc proc rw 0 0", "tmpfs /var/a\\040place/root tmpfs rw 0 0"]
    assert mounted_below("/var/a place", mounts) == "/var/a place/root"
    assert mounted_below("/var/a place/root", mounts) == "/var/a place/root"
    assert mounted_below("/var/a pla", mounts) is None
    assert mounted_below("/", mounts) == "/proc"


def test_a_command_is_killed_with_its_child_at_its_time_limit() -> None:
    outcome = run(["sh", "-c", "echo begun; sleep 1000 & wait"], timeout_s=0.5)
    assert outcome.code == TIMED_OUT
    assert outcome.lines == ("begun", "killed after 0 s")


def test_circumstances_name_users_that_exist() -> None:
    assert {user for row in CIRCUMSTANCES.values() for user in row.users} <= USERS.keys()
    assert f"{len(LONG)} bytes" in CIRCUMSTANCES["tmpdir-long"].meaning


def test_a_demo_that_cannot_run_is_recognized_by_its_last_line() -> None:
    page = page_of([], [a_circumstance("no-name", end="Error: name a user")])
    assert "| no-name \\| as it is | `Error: name a user` | 30 |" in page
