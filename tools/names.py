"""Counts the names that txmsg uses for several things, and refuses new ones.

python tools/names.py           print the counts, and every place of a name that is recorded
python tools/names.py --check   fail for a name that has more places than tools/names.toml records
python tools/names.py --record  write lower counts into tools/names.toml; a count cannot rise

It counts four things: classes; class names that several modules define; verbs without an object (`take`, not
`take_rows`), which grep cannot follow; names of modules that one door has twice. A door is what is directly below
txmsg/. What a framework or a compiler names is left out, and so are the sync twins of asynchronous modules.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).with_name("names.toml")

GENERATED = ("_pb2.py", "_rpc.py")
TWIN = "# Generated from "
"""The head of a module that tools/sync_of_async.py made: it has the names of its source."""
IMPOSED = frozenset({"Command", "Meta", "Migration"})
"""Class names that Django looks for."""
MODELS = "django/models.py"
"""Django shows the names of its classes to applications: they are those of the tables."""
VERBS = frozenset(
    re.findall(
        r"\w+",
        "ask begin drop end find forget give go hold keep leave look make note put release send show take tell use wake"
        " watch",
    )
)
"""Verbs that need an object. Not add, close, get, run, set, start, stop, wait: they mean the same all over Python."""
VERB_PLACES_MAX = 3
"""Definitions of one bare verb that need no record."""
HEADINGS = {
    "classes": "Class names with more than one meaning",
    "verbs": "Verbs without an object, in more than {VERB_PLACES_MAX} places",
    "modules": "Module names that a door has more than once",
}
ADVICE = {
    "classes": "give the new one the qualifier that tells it from the others, as in SqlStatementKind for Kind",
    "verbs": "add the object, as in take_rows for take",
    "modules": "say in its name what of, as in tailer_figures.py for figures.py",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Places = Mapping[str, list[str]]
"""Where a name is defined."""


def main() -> int:
    """Return 1 if a name has more places than recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="print only names that have become worse, and fail")
    parser.add_argument("--record", action="store_true", help="write counts that have fallen into tools/names.toml")
    arguments = parser.parse_args()
    recorded = tomllib.loads(RECORD.read_text()) if RECORD.exists() else None
    found = repeated(ROOT)
    worse = list(worse_than(recorded, found)) if recorded is not None else []
    for line in worse:
        print(line, file=sys.stderr)
    if arguments.record and not worse:
        RECORD.write_text(as_toml(found))
    elif not arguments.check:
        print(table(found, class_count(ROOT)))
    return 1 if worse else 0


def repeated(root: Path) -> dict[str, Places]:
    """Return the places of each name that has several, by what it names: "classes", "verbs" or "modules"."""
    classes: dict[str, list[str]] = defaultdict(list)
    verbs: dict[str, list[str]] = defaultdict(list)
    modules: dict[str, list[str]] = defaultdict(list)
    for path, tree, is_twin in sources(root):
        names = set() if path.match(MODELS) else class_names(tree) - IMPOSED
        if is_twin:
            source = root / path.with_name(f"{path.stem}_async.py")
            names -= class_names(ast.parse(source.read_text(encoding="utf-8")))
        for name in sorted(names):
            classes[name].append(str(path))
        if is_twin:
            continue
        for each in ast.walk(tree):
            if isinstance(each, Function) and each.name.strip("_") in VERBS and not is_property(each):
                verbs[each.name.strip("_")].append(f"{path}:{each.lineno}")
        if path.name != "__init__.py" and len(path.parts) > 2:
            modules[f"{path.parts[1]}: {path.name}"].append(str(path))
    return {
        "classes": {name: places for name, places in classes.items() if len(places) > 1},
        "verbs": {name: places for name, places in verbs.items() if len(places) > VERB_PLACES_MAX},
        "modules": {name: places for name, places in modules.items() if len(places) > 1},
    }


def is_property(function: Function) -> bool:
    """Return whether it is read as an attribute, so that its name is a noun: `end` of a range."""
    return any(isinstance(each, ast.Name) and each.id.endswith("property") for each in function.decorator_list)


def sources(root: Path) -> Iterator[tuple[Path, ast.Module, bool]]:
    """Yield each module's path below `root`, its tree, and whether it is a sync twin."""
    for path in sorted((root / "txmsg").rglob("*.py")):
        if not path.name.endswith(GENERATED):
            text = path.read_text(encoding="utf-8")
            yield path.relative_to(root), ast.parse(text), text.startswith(TWIN)


def class_names(tree: ast.Module) -> set[str]:
    """Return the names of all classes of a module, also of those within others."""
    return {each.name for each in ast.walk(tree) if isinstance(each, ast.ClassDef)}


def class_count(root: Path) -> int:
    """Return the number of classes, with those of sync twins."""
    return sum(isinstance(each, ast.ClassDef) for _, tree, _ in sources(root) for each in ast.walk(tree))


def worse_than(recorded: Mapping[str, Mapping[str, int]], found: Mapping[str, Places]) -> Iterator[str]:
    """Yield a line for each name that has more places than recorded: the name, its places, and the way out."""
    for kind, names in found.items():
        for name, places in names.items():
            allowed = recorded.get(kind, {}).get(name, VERB_PLACES_MAX if kind == "verbs" else 1)
            if len(places) > allowed:
                yield f"{name} is defined {len(places)} times, at most {allowed} are recorded in tools/names.toml:"
                yield from (f"  {place}" for place in places)
                yield f"  {ADVICE[kind]}"


def as_toml(found: Mapping[str, Places]) -> str:
    """Return the text of tools/names.toml."""
    lines = ["# Written by `python tools/names.py --record`: how many places a name may have. A count cannot rise."]
    for kind, names in found.items():
        lines += ["", f"[{kind}]", *(f'"{name}" = {len(places)}' for name, places in sorted(names.items()))]
    return "\n".join(lines) + "\n"


def table(found: Mapping[str, Places], classes: int) -> str:
    """Return the counts and all places, for people."""
    lines = [f"{classes} classes"]
    for kind, names in found.items():
        heading = HEADINGS[kind].format(VERB_PLACES_MAX=VERB_PLACES_MAX)
        count = sum(map(len, names.values()))
        lines += ["", f"{heading}: {len(names)}, in {count} places", ""]
        for name, places in sorted(names.items(), key=lambda item: (-len(item[1]), item[0])):
            by_door = Counter(Path(place).parts[1].removesuffix(".py") for place in places)
            doors = ", ".join(f"{door} {n}" if n > 1 else door for door, n in sorted(by_door.items()))
            lines.append(f"{len(places):4}  {name:28} {doors if kind != 'modules' else ', '.join(places)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
