"""Durations, sizes and token files on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from txmsg.ops.cli.main import main
from txmsg.ops.cli.options import duration, size


def test_a_duration_is_a_number_and_a_unit() -> None:
    assert [duration(text) for text in ("90s", "1.5m", "12h", "7d")] == [90, 90, 43_200, 604_800]


@pytest.mark.parametrize(
    "text", ["", "7", "7w", "-1d", "0s", "0.0000001s", "nans", "1e3d", "7 d", "99999d", "٧d ", "7d\n"]
)
def test_an_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="as 12h or 7d"):
        duration(text)


def test_a_size_is_bytes_or_a_number_and_a_unit() -> None:
    assert [size(text) for text in ("0", "512", "1KiB", "3MiB", "100GiB")] == [0, 512, 1024, 3 * 1024**2, 100 * 1024**3]


@pytest.mark.parametrize("text", ["", "1GB", "-1", "1.5GiB", "GiB", "1 GiB", "1e9", "9999999999999999"])
def test_an_invalid_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="as 100GiB"):
        size(text)


def test_a_token_does_not_overwrite_an_existing_file(tmp_path: Path) -> None:
    taken = tmp_path / "ops.token"
    taken.write_text("another's")
    absent = tmp_path / "absent" / "x.token"
    for out, why in (
        (taken, "is there already, perhaps with the token of another user: give another name"),
        (Path("/dev/stdout"), "is not a regular file"),
        (absent, f"is {absent.parent} a directory that you may write to?"),
    ):
        done = CliRunner().invoke(main, ["user", "create", "shop", "--broker", "localhost:1", "--out", str(out)])
        assert why in " ".join(done.output.split())
    assert taken.read_text() == "another's"
