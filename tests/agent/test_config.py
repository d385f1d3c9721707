"""The agent's configuration file: all of it is checked, and errors name the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from txmsg.errors import MisuseError
from txmsg.metaq.agent.agent_config import read_agent_file

_GOOD = """
log = "metaq:7720"
state_dir = "/var/lib/txmsg-agent"

[source.web]
paths = ["/var/log/nginx/access.log", "/srv/*/app.log"]
topic = "web.access"
lines_per_s = 5000
batch_size_bytes = "2MiB"
linger_s = "500ms"
"""


def _write(directory: Path, text: str) -> Path:
    path = directory / "agent.toml"
    path.write_text(text)
    return path


def test_configuration_file_defines_agent_and_sources(tmp_path: Path) -> None:
    found = read_agent_file(_write(tmp_path, _GOOD))
    assert found.agent.log == "metaq:7720"
    web = found.sources["web"]
    assert (web.lines_per_s, web.batch_size_bytes, web.linger_s, web.start) == (5000.0, 2 * 1024**2, 0.5, "beginning")


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ('log = "metaq:7720"', "", r"agent\.toml: log is missing: The log: HOST:PORT"),
        ('log = "metaq:7720"', 'lug = "x"', r"agent\.toml: 'lug' is not a setting: did you mean log\?"),
        ("[source.web]", "[sources.web]", r"'sources' is not a setting"),
        ("[source.web]", '[source."a b"]', r"source\.a b is not a source: write \[source\.NAME\]"),
        ("paths = [", "pahts = [", r"\[source\.web\]: 'pahts' is not a setting: did you mean paths\?"),
        ('"/var/log/nginx/access.log", "/srv/*/app.log"', '"log"', r"paths: 'log' is not absolute: begin it with /"),
        ('"/var/log/nginx/access.log", "/srv/*/app.log"', "", r"paths is empty: name a file"),
        ('"web.access"', '"web access"', r"\[source\.web\]: topic 'web access' is not a valid name: it holds ' '"),
        ('"web.access"', "3", r"\[source\.web\]: topic: the value 3 is not a text on one line"),
        ("5000", "-1", r"lines_per_s: the value -1 is not a number from 0"),
        ('"2MiB"', '"2 loads"', r"batch_size_bytes: the value '2 loads' is not a size .*give bytes, or 512KiB"),
        ('"500ms"', '"1h"', r"linger_s: the value '1h' is not a duration from 10ms to 1m"),
        ('"500ms"', '"500ms"\nrecord_start = "["', r"'\[' is not a regular expression"),
        ('"500ms"', '"500ms"\nencoding = "utf-16"', r"lines cannot be told apart in 'utf-16'"),
        ('"500ms"', '"10s"', r"rest_s=5 is less than linger_s=10"),
        ('"500ms"', '"500ms"\nstart = "middle"', r"start: the value 'middle' is not one of beginning, end"),
        ("[source.web]", "[source.web", r"is not a file of an agent in TOML"),
    ],
)
def test_configuration_error_names_file_key_value_and_fix(tmp_path: Path, before: str, after: str, error: str) -> None:
    assert before in _GOOD
    with pytest.raises(MisuseError, match=error) as caught:
        read_agent_file(_write(tmp_path, _GOOD.replace(before, after, 1)))
    assert "agent.toml" in str(caught.value)


def test_configuration_file_that_is_missing_or_has_no_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match=r"has no source: add a table \[source.NAME\] with paths and topic"):
        read_agent_file(_write(tmp_path, _GOOD[: _GOOD.index("[source")]))
    with pytest.raises(MisuseError, match="cannot be read: No such file"):
        read_agent_file(tmp_path / "none.toml")


def test_metrics_address_outside_localhost_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="--http-listen"):
        read_agent_file(_write(tmp_path, 'http_listen = "0.0.0.0:9740"' + _GOOD))
