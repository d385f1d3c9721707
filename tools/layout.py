"""Draws the layout of the package, its rooms by layers with their imports, and lists it in docs/architecture.md.

python tools/layout.py TREE [PICTURE.svg]

prints exact counts of a checkout, and draws it; of an earlier commit: git archive COMMIT | tar x -C TREE. Rooms are the
modules and packages directly below txmsg/; layers are those of the first contract for import-linter in pyproject.toml.
Modules generated from .proto files do not count. Page and picture have two digits of each number, so that few changes
change them.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from html import escape
from pathlib import Path

GENERATED = ("_pb2.py", "_rpc.py")

PAGE = Path("docs/architecture.md")
PICTURE = Path("docs/images/layout.svg")
TABLE_BEGIN = "<!-- The table below is made by `make generate`. -->"
TABLE_END = "<!-- The table above is made by `make generate`. -->"

PAGE_WIDTH_MIN = 1250
MARGIN = 16
GAP = 14
ROOM_HEIGHT = 64
LAYER_HEIGHT = 110
LINES_PER_UNIT = 24
"""The scale: the same in each picture, so that two of them can be compared."""
ROOM_WIDTH_MIN = 150
PART_WIDTH_MIN = 62
"""Narrower parts have no name written on them."""


@dataclass(frozen=True, slots=True)
class Module:
    """One file. room: its directory under txmsg. part: the package within the room, or ''. says: its docstring."""

    room: str
    part: str
    says: str
    lines: int
    code_lines: int
    imports: frozenset[str]


def main(arguments: Sequence[str]) -> int:
    """Print the counts, and draw the picture if its file is given. Return the exit status."""
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    tree = Path(arguments[0])
    modules = modules_of(tree)
    for room in sorted({module.room for module in modules}):
        print(count(room, [module for module in modules if module.room == room]))
    print(count("all", modules))
    if len(arguments) == 2:
        Path(arguments[1]).write_text(picture(layers_of(tree, modules), modules), encoding="utf-8")
    return 0


def count(name: str, modules: Sequence[Module]) -> str:
    lines, code = sum(module.lines for module in modules), sum(module.code_lines for module in modules)
    return f"{name:16} {len(modules):4} modules {lines:7,} lines {code:7,} of code"


def layout_files(tree: Path) -> dict[Path, str]:
    """The page, with its table as it is to be now, and the picture, by their paths below the root."""
    modules = modules_of(tree)
    layers = layers_of(tree, modules)
    page = (tree / PAGE).read_text(encoding="utf-8")
    before, begin, rest = page.partition(TABLE_BEGIN)
    _, end, after = rest.partition(TABLE_END)
    if not begin or not end:
        raise ValueError(f"{PAGE} needs the lines {TABLE_BEGIN!r} and {TABLE_END!r}: the table stands between them")
    table = "".join(table_of(layers, modules))
    return {PAGE: f"{before}{begin}\n\n{table}\n{end}{after}", PICTURE: picture(layers, modules)}


def table_of(layers: Sequence[Sequence[str]], modules: Sequence[Module]) -> Iterator[str]:
    """A row for each room, from the top down, and one for all."""
    yield "| Layer | Below `txmsg/` | What it is | Packages in it | Modules | Lines | of these code |\n"
    yield "|---|---|---|---|---|---|---|\n"
    for number, layer in enumerate(layers, 1):
        for room in sorted(layer):
            held = [module for module in modules if module.room == room]
            is_package = len(held) > 1
            parts = ", ".join(f"`{part}`" for part in sorted({module.part for module in held} - {""}))
            cells = (number, f"`{room}/`" if is_package else f"`{room}.py`", first_sentence(room, held), parts)
            yield f"| {' | '.join(map(str, cells))} | {counts(held)} |\n"
    yield f"| | | all, with `__init__.py` | | {counts(modules)} |\n"


def counts(held: Sequence[Module]) -> str:
    lines, code = sum(module.lines for module in held), sum(module.code_lines for module in held)
    return f"{len(held)} | {two_digits(lines):,} | {two_digits(code):,}"


def two_digits(number: int) -> int:
    """15,612 is 16,000: one more line seldom changes it."""
    return round(number, 2 - len(str(number)))


def first_sentence(room: str, held: Sequence[Module]) -> str:
    """Of the docstring of the room: of the module in it that comes first by its path, which is `__init__.py`."""
    paragraph = " ".join(held[0].says.partition("\n\n")[0].split())
    if found := re.match(r".+?\.(?= |$)", paragraph):
        return found[0].replace("|", "\\|")
    raise ValueError(f"the docstring of txmsg.{room} begins with no sentence: the table of {PAGE} shows its first one")


# ---- the tree


def modules_of(tree: Path) -> list[Module]:
    """Those of the package, by their paths."""
    return [module_of(tree, path) for path in sorted((tree / "txmsg").rglob("*.py")) if is_source(path)]


def is_source(path: Path) -> bool:
    return not path.name.endswith(GENERATED) and "examples" not in path.parts


def module_of(tree: Path, path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    parsed = ast.parse(text)
    room, *parts = path.relative_to(tree / "txmsg").parts
    return Module(
        room=room.removesuffix(".py"),
        part=parts[0] if len(parts) > 1 else "",
        says=ast.get_docstring(parsed) or "",
        lines=text.count("\n"),
        code_lines=code_lines_of(text, parsed),
        imports=frozenset(imports_of(parsed)),
    )


def imports_of(parsed: ast.Module) -> Iterator[str]:
    """Return the rooms that a module imports, also within functions and for types alone."""
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module] if node.module != "txmsg" else [f"txmsg.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("txmsg."))


def code_lines_of(text: str, parsed: ast.Module) -> int:
    """Return the number of lines that are not blank, a comment or a docstring."""
    none = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in none:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(parsed):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                lines.difference_update(range(first, last + 1))
    return len(lines)


def layers_of(tree: Path, modules: Sequence[Module]) -> list[list[str]]:
    """Return the rooms of each layer, from the top down. An unnamed room is above all that it imports."""
    settings = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    layers = [[name.removeprefix("txmsg.") for name in layer.split(" | ")] for layer in contract["layers"]]
    place = {room: number for number, layer in enumerate(layers) for room in layer}
    for room in sorted({module.room for module in modules} - place.keys() - {"__init__"}):
        imported = {name for module in modules if module.room == room for name in module.imports} & place.keys()
        layers[min((place[name] for name in imported), default=len(layers)) - 1].append(room)
    return layers


# ---- the picture


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def picture(layers: Sequence[Sequence[str]], modules: Sequence[Module]) -> str:
    """Return the rooms as an SVG, without imports implied by others and those of the most imported rooms."""
    of_room = {room: [module for module in modules if module.room == room] for layer in layers for room in layer}
    imports = Counter(
        (room, name) for room, held in of_room.items() for module in held for name in module.imports - {room}
    )
    importers = Counter(target for _, target in imports if target in of_room)
    common = {room for room, number in importers.items() if number > len(of_room) / 2}
    edges = {(source, target): number for (source, target), number in imports.items() if target in of_room}
    shown = without_implied({edge for edge in edges if edge[1] not in common})

    widths = {room: max(ROOM_WIDTH_MIN, lines_of(held) / LINES_PER_UNIT) for room, held in of_room.items()}
    page_width = max(PAGE_WIDTH_MIN, *(sum(widths[room] + GAP for room in layer) + 2 * MARGIN for layer in layers))
    boxes: dict[str, Box] = {}
    for number, layer in enumerate(layers):
        x = (page_width - sum(widths[room] + GAP for room in layer) + GAP) / 2
        for room in layer:
            boxes[room] = Box(x, MARGIN + number * LAYER_HEIGHT, widths[room])
            x += widths[room] + GAP

    page_height = 2 * MARGIN + (len(layers) - 1) * LAYER_HEIGHT + ROOM_HEIGHT
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {page_width:.0f} {page_height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11">',
        "<title>The rooms of txmsg: layers from the top down, width by lines, arrows for imports</title>",
        f'<rect width="{page_width:.0f}" height="{page_height}" fill="#ffffff"/>',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8Z" fill="#7a8699"/></marker></defs>',
    ]
    drawn += [arrow(boxes[source], boxes[target], edges[source, target]) for source, target in sorted(shown)]
    for room, box in boxes.items():
        drawn += room_drawn(room, box, of_room[room], importers[room] if room in common else 0)
    return "\n".join([*drawn, "</svg>", ""])


def lines_of(held: Sequence[Module]) -> int:
    return two_digits(sum(module.lines for module in held))


def without_implied(edges: Set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the edges that no longer path replaces."""
    direct = {source: {to for origin, to in edges if origin == source} for source, _ in edges}

    def reached(room: str) -> set[str]:
        return set().union(*({to} | reached(to) for to in direct.get(room, ())))

    return {(source, to) for source, to in edges if not any(to in reached(other) for other in direct[source] - {to})}


def arrow(source: Box, target: Box, number: int) -> str:
    """Thick for ten modules that import, thicker for thirty."""
    down = target.y > source.y
    begin, end = source.y + (ROOM_HEIGHT if down else 0), target.y - (0 if down else -ROOM_HEIGHT)
    # Leaves on the side of its target, so that the arrows of one room fan out.
    x = source.middle + max(-0.4, min(0.4, (target.middle - source.middle) / 900)) * source.width
    to = target.middle + max(-0.4, min(0.4, (source.middle - target.middle) / 900)) * target.width
    bend = (end - begin) / 2
    width = 0.9 if number < 10 else 2 if number < 30 else 3.6
    colour = "#7a8699" if down else "#c0392b"
    return (
        f'<path d="M{x:.0f} {begin:.0f}C{x:.0f} {begin + bend:.0f} {to:.0f} {end - bend:.0f} {to:.0f} {end:.0f}" '
        f'fill="none" stroke="{colour}" stroke-opacity="0.55" stroke-width="{width}" '
        'marker-end="url(#head)"/>'
    )


def room_drawn(room: str, box: Box, held: Sequence[Module], importers: int) -> Iterator[str]:
    """Return a box: its name, its counts, and its parts beneath, as wide as their lines."""
    lines = lines_of(held)
    yield (
        f'<rect x="{box.x:.1f}" y="{box.y}" width="{box.width:.1f}" height="{ROOM_HEIGHT}" rx="3" fill="#eef3fa" '
        'stroke="#38506e"/>'
    )
    yield text(box.x + 7, box.y + 15, room, 'font-weight="bold" font-size="13"')
    counted = f"{len(held)} module{'s' if len(held) > 1 else ''}, {lines:,} lines"
    yield text(box.x + 7, box.y + 29, counted, 'fill="#38506e"')
    if importers:
        yield text(box.x + 7, box.y + 49, f"{importers} rooms import it", 'font-style="italic" fill="#38506e"')
        return
    inner, sizes = box.width - 8, Counter[str]()
    for part in sorted({module.part for module in held}):
        sizes[part] = lines_of([module for module in held if module.part == part])
    lines = sizes.total()  # of the rounded ones, so that they fill the strip
    if all(inner * size / lines < PART_WIDTH_MIN for part, size in sizes.items() if part):
        return
    x = box.x + 4
    for part, size in sorted(sizes.items(), key=lambda item: (item[0] == "", -item[1])):
        width = inner * size / lines
        fill = "#c9d9ee" if part else "#f8fafd"
        yield (
            f'<rect x="{x:.1f}" y="{box.y + 36}" width="{width:.1f}" height="24" fill="{fill}" '
            f'stroke="#ffffff"><title>{escape(part or "beside the packages")}: {size:,} lines</title></rect>'
        )
        if part and width >= PART_WIDTH_MIN:
            yield text(x + 4, box.y + 52, f"{part} {size:,}" if width > 90 else part, 'font-size="10"')
        x += width


def text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
