"""Refusals of tools/names.py, in trees made by the tests."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from tools.names import VERB_PLACES_MAX, as_toml, class_count, repeated, table, worse_than


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / "txmsg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return root


def test_second_class_of_a_name_is_refused_with_places_and_remedy(tmp_path: Path) -> None:
    root = tree(tmp_path, {"broker/a.py": "class Line: ...", "client/b.py": "class Line: ...", "client/c.py": ""})
    text = "\n".join(worse_than({}, repeated(root)))
    assert "Line is defined 2 times, at most 1 are recorded in tools/names.toml:" in text
    assert "txmsg/broker/a.py" in text
    assert "txmsg/client/b.py" in text
    assert "qualifier" in text


def test_recorded_names_are_allowed_and_their_next_place_is_not(tmp_path: Path) -> None:
    root = tree(tmp_path, {f"{door}/a.py": "class Line: ..." for door in ("broker", "client", "wire")})
    assert not list(worse_than({"classes": {"Line": 3}}, repeated(root)))
    assert list(worse_than({"classes": {"Line": 2}}, repeated(root)))


def test_verb_without_object_is_refused_beyond_the_common_limit(tmp_path: Path) -> None:
    few = {f"door/m{number}.py": "def take(): ..." for number in range(VERB_PLACES_MAX)}
    root = tree(tmp_path, few)
    assert not list(worse_than({}, repeated(root)))
    tree(root, {"door/one_more.py": "class Queue:\n    async def _take(self): ..."})
    text = "\n".join(worse_than({}, repeated(root)))
    assert text.startswith(f"take is defined {VERB_PLACES_MAX + 1} times")
    assert "txmsg/door/one_more.py:2" in text
    assert "take_rows" in text


def test_properties_and_verbs_with_an_object_are_not_counted_as_verbs(tmp_path: Path) -> None:
    text = """
        class Queue:
            @property
            def end(self): ...
            def take_rows(self): ...
        """
    root = tree(tmp_path, {f"door/m{number}.py": text for number in range(VERB_PLACES_MAX + 1)})
    assert repeated(root)["verbs"] == {}


def test_two_modules_of_one_name_in_a_door_are_refused(tmp_path: Path) -> None:
    root = tree(tmp_path, {"broker/config.py": "", "broker/delivery/config.py": "", "metaq/config.py": ""})
    text = "\n".join(worse_than({}, repeated(root)))
    assert text.startswith("broker: config.py is defined 2 times")
    assert "txmsg/metaq/config.py" not in text


def test_sync_twin_counts_only_for_its_own_names(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "client/flow_async.py": "class AsyncHalf: ...\nclass _Page: ...\ndef take(): ...",
            "client/flow.py": "# Generated from flow_async.py\nclass Half: ...\nclass _Page: ...\ndef take(): ...",
            "broker/halves.py": "class Half: ...",
        },
    )
    assert repeated(root)["classes"] == {"Half": ["txmsg/broker/halves.py", "txmsg/client/flow.py"]}
    assert class_count(root) == 5


def test_recorded_names_of_a_tree_allow_the_unchanged_tree(tmp_path: Path) -> None:
    root = tree(tmp_path, {"broker/a.py": "class Line: ...", "client/a.py": "class Line: ...", "client/x/a.py": ""})
    found = repeated(root)
    recorded = tomllib.loads(as_toml(found))
    assert recorded == {"classes": {"Line": 2}, "verbs": {}, "modules": {"client: a.py": 2}}
    assert not list(worse_than(recorded, found))
    assert "broker, client" in table(found, 2)
