"""`txmsg --help` reads like one tool: rules for every command."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from txmsg.ops.cli.group import doubled
from txmsg.ops.cli.main import main
from txmsg.ops.cli.options import TIME, duration
from txmsg.runtime.durations import shown_duration

_ROOT = Path(__file__).resolve().parents[2]
_PAGES_OF_TEXTS = {"errors.md", "events.md", "settings.md"}
"""Pages that list texts of txmsg and show no use of a command."""
INTERACTIVE = {"txmsg demo connect"}  # for people


def walk(command: click.Command, path: str = "txmsg") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is not a group, with the words that call it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, f"{path} {name}")
    else:
        yield path, command


COMMANDS = dict(walk(main))


def options_of(command: click.Command) -> dict[str, click.Option]:
    return {each.opts[-1]: each for each in command.params if isinstance(each, click.Option)}


def test_commands_of_all_groups_are_found() -> None:
    assert {"txmsg broker", "txmsg db check", "txmsg dead-letter redrive", "txmsg topic alter"} <= COMMANDS.keys()


def test_a_page_names_every_command() -> None:
    pages = [_ROOT / "README.md", *(_ROOT / "examples").rglob("README.md"), *(_ROOT / "docs").rglob("*.md")]
    written = " ".join(
        page.read_text() for page in pages if page.parent.name != "decisions" and page.name not in _PAGES_OF_TEXTS
    )
    words = " ".join(written.split())
    assert [path for path in COMMANDS if path not in INTERACTIVE and not re.search(rf"{path}\b", words)] == []


def groups_of(command: click.Command, path: str = "txmsg") -> Iterator[tuple[str, click.Group]]:
    """Yield every command group."""
    if isinstance(command, click.Group):
        yield path, command
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from groups_of(found, f"{path} {name}")


def test_summaries_of_commands_are_not_cut_in_listings() -> None:
    listings = {path: group.get_help(click.Context(group, info_name=path)) for path, group in groups_of(main)}
    assert {"txmsg", "txmsg metaq", "txmsg group"} <= listings.keys()

    cut = [line for listing in listings.values() for line in listing.splitlines()[1:] if line.endswith("...")]

    assert not cut, "give these a short_help"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_an_example_json_output_and_help_for_each_option(path: str) -> None:
    command = COMMANDS[path]
    help_text = command.get_help(click.Context(command, info_name=path, max_content_width=100))
    lines = help_text.splitlines()
    assert "  Example:" in lines, help_text
    assert lines[lines.index("  Example:") + 1].startswith(f"    {path}"), help_text
    if path not in INTERACTIVE:
        assert options_of(command)["--json"].is_flag
    for name, option in options_of(command).items():
        assert re.fullmatch(r"--[a-z][a-z-]*", name), f"{path} {name}"
        assert option.help, f"{path} {name} has no help"
        assert option.help.endswith((".", "]", ")")), f"{path} {name}: {option.help!r} is no sentence"


def test_examples_use_only_existing_options() -> None:
    for path, command in COMMANDS.items():
        assert command.epilog is not None
        for line in command.epilog.replace("\\\n", " ").splitlines():
            if line.startswith("  txmsg "):
                asked = set(re.findall(r" (--[a-z-]+)", line.partition("#")[0]))
                assert asked <= options_of(command).keys(), f"{path}: {line}"


def test_help_fits_a_terminal_of_80_columns() -> None:
    for path in [*COMMANDS, *dict(groups_of(main))]:
        text = CliRunner().invoke(main, [*path.split()[1:], "--help"], terminal_width=80).output
        assert [line for line in text.splitlines() if len(line) > 80] == [], path


def options_named(text: str) -> Iterator[tuple[str, click.Command, str]]:
    """Yield for each command call on a page, in a block or a sentence: its words, the command, an option."""
    for call in re.finditer(r"(?<![\w/.'\"-])txmsg ([^`\n|;&#>]*)", text.replace("\\\n", " ")):
        words = call[1].split()
        command: click.Command = main
        while words and isinstance(command, click.Group):
            found = command.get_command(click.Context(command), words[0])
            if found is None:
                break
            command = found
            del words[0]
        if command is not main:
            for option in re.findall(r"(?:^| )\[?(--[a-z][a-z-]*)", " ".join(words)):
                yield call[0], command, option


def test_pages_name_only_existing_options() -> None:
    pages = [*_ROOT.glob("*.md"), *(path for path in _ROOT.glob("docs/**/*.md") if "decisions" not in path.parts)]
    named = [(path.name, *each) for path in pages for each in options_named(path.read_text(encoding="utf-8"))]
    assert len(named) > 300
    assert [
        f"{page}: {call}"
        for page, call, command, option in named
        if option not in {"--help", *(name for each in command.params for name in each.opts)}
    ] == []


@pytest.mark.parametrize(
    ("command", "what"),
    [(["metaq", "topics", "--log", "log"], "metaq"), (["group", "list", "--log", "log"], "group")],
)
def test_a_command_names_the_extra_that_it_lacks(command: list[str], what: str) -> None:
    program = f"import sys; sys.modules['google_crc32c'] = None; from txmsg.ops.cli.main import main; main({command})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    told = f"txmsg {what} needs google_crc32c, which is not installed: run `pip install 'txmsg[metaq]'`"
    assert (done.returncode, done.stderr) == (1, f"Error: {told}\n")


def test_every_command_that_opens_a_log_has_the_log_option() -> None:
    named = {path for path, command in COMMANDS.items() for each in command.params if each.human_readable_name == "LOG"}
    assert named == set()
    assert {path for path in COMMANDS if path.startswith("txmsg metaq ") and "--log" in options_of(COMMANDS[path])} == {
        f"txmsg metaq {name}" for name in ("delayed", "export", "find", "recall", "set", "status", "tail", "topics")
    }


def test_options_with_one_name_have_one_type_everywhere() -> None:
    kinds: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, command in COMMANDS.items():
        for name, option in options_of(command).items():
            kind = "path" if isinstance(option.type, click.Path) else option.type.name
            kinds[name][f"{kind} {option.is_flag}"].append(path)
    assert [(name, dict(found)) for name, found in kinds.items() if len(found) > 1] == []


def test_every_command_that_asks_for_confirmation_has_yes() -> None:
    destructive = {path for path in COMMANDS if path.rpartition(" ")[2] in ("purge", "delete", "rollback", "commit")}
    assert "txmsg dead-letter purge" in destructive
    for path in destructive - {"txmsg fence purge"}:  # a daily job, which deletes only rows that are no longer needed
        assert "--yes" in options_of(COMMANDS[path]), path


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30.0), ("5m", 300.0), ("1h30m", 5400.0), ("2d", 172_800.0), ("1.5s", 1.5)],
)
def test_a_duration_is_read_and_shown(text: str, seconds: float) -> None:
    assert duration(text) == seconds
    assert duration(shown_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-5m", "5x", "1e3s", "0s", "99999999d"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration: give a number and s, m, h or d, such as 12h"):
        duration(text)


def test_a_time_without_a_zone_is_utc_and_a_duration_is_a_time_ago() -> None:
    assert TIME.convert("2026-05-01T10:00:00", None, None) == datetime(2026, 5, 1, 10, tzinfo=UTC)
    assert TIME.convert("2026-05-01T12:00:00+02:00", None, None) == datetime(2026, 5, 1, 10, tzinfo=UTC)
    before = datetime.now(UTC)
    ago_s = (before - TIME.convert("2h", None, None)).total_seconds()
    assert 7100 < ago_s < 7300
    with pytest.raises(click.BadParameter, match="is not a time: give 2026-05-01T10:00:00Z, or 2h"):
        TIME.convert("yesterday", None, None)


def test_exponential_delays_double_up_to_the_last() -> None:
    assert doubled("1s..10s") == [1, 2, 4, 8, 10]
    assert doubled("1s..1s") == [1]
    assert doubled("1h..1s") == [1]
    with pytest.raises(click.UsageError, match=r"not of the form FROM\.\.TO"):
        doubled("1s")


def test_an_argument_that_begins_with_a_dash_is_given_after_a_double_dash() -> None:
    def asked(*words: str) -> str:
        return CliRunner().invoke(main, ["user", "access-key", "revoke", *words]).stderr

    hint = "; an argument that begins with - comes after all options and --"
    assert hint in asked("shop", "-id")
    assert "no answer from a broker at localhost:1" in asked("--broker", "localhost:1", "--", "shop", "-id")
    assert hint not in asked("shop", "--brokr", "localhost:1"), "an option that is misspelt"


def said_on(terminal: int, until: str = "") -> str:
    """Return the terminal output of a process until this text or its end."""
    text = ""
    while not (until and text.endswith(until)):
        assert select.select([terminal], [], [], 60)[0], text
        try:
            text += os.read(terminal, 4096).decode()
        except OSError:  # no process has it open
            return text
    return text


@pytest.mark.skipif(
    sys.platform == "linux" and not Path("/dev/pts/ptmx").exists(),
    reason="this machine has no terminals: /dev/pts is not mounted",
)
def test_a_terminal_does_not_show_the_secret_of_an_access_key(tmp_path: Path) -> None:
    command = ["user", "access-key", "import", "shop", "LTAI5tQ2", "--access-key-file", str(tmp_path / "no.key")]
    terminal, its_end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "txmsg.ops.cli.main", *command],
        stdin=its_end, stdout=its_end, stderr=its_end, start_new_session=True,
    )  # fmt: skip
    try:
        os.close(its_end)
        assert said_on(terminal, ": ") == "Secret of access key LTAI5tQ2: "
        os.write(terminal, b"xyzzy\n")
        answer = said_on(terminal)
        assert process.wait(120) == 1
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert "the secret of access key LTAI5tQ2, of 5 characters, cannot be kept" in answer
    assert "xyzzy" not in answer


@pytest.mark.parametrize(
    ("words", "status", "code", "said"),
    [
        (("group", "list", "--broker", "localhost:1"), 1, "broker_unavailable", "no answer from a broker"),
        (("group", "seek", "mailer", "--too"), 2, "usage", "No such option"),
        (("gruop", "list"), 2, "usage", "there is no command 'gruop'"),
    ],
)
def test_with_json_an_error_is_json(words: tuple[str, ...], status: int, code: str, said: str) -> None:
    result = CliRunner().invoke(main, [*words, "--json"])
    assert (result.exit_code, result.stdout) == (status, "")
    error = json.loads(result.stderr)["error"]
    assert error["code"] == code
    assert said in error["text"]


def test_a_demo_without_a_temporary_directory_says_how_to_set_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", none)
    result = CliRunner().invoke(main, ["demo", "registration"])
    assert result.exit_code == 2
    assert "No usable temporary directory found" in result.output
    assert "set TMPDIR to one that can be written, or name a directory with --keep" in result.output
