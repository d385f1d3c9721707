"""Checks the contents of a wheel: txmsg alone, and each of its files known to git.

python tools/wheel.py dist/txmsg-0.1.0-py3-none-any.whl

Prints one line, or what is wrong and exit status 1.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent


def main(wheel: Path) -> int:
    """Run the check; return the exit status."""
    with ZipFile(wheel) as archive:
        held = {entry.filename for entry in archive.infolist() if not entry.is_dir()}
        size_bytes = sum(entry.file_size for entry in archive.infolist())
    metadata = {name for name in held if name.startswith("txmsg-") and ".dist-info/" in name}
    foreign = {name for name in held - metadata if not name.startswith("txmsg/")}
    faults = [
        *(f"{name} does not belong to the package: see [tool.hatch] in pyproject.toml" for name in sorted(foreign)),
        *(f"{name} is missing" for name in sorted(committed() - held)),
        *(f"{name} is not committed" for name in sorted(held - metadata - foreign - committed())),
    ]
    for fault in faults:
        print(f"{wheel.name}: {fault}", file=sys.stderr)
    if not faults:
        print(f"{wheel.name}: {len(held)} files, {size_bytes / 1e6:.1f} MB unpacked")
    return 1 if faults else 0


def committed() -> set[str]:
    """The files that an installation has: of the package, and of the examples, which txmsg/ops/demo has by a link."""
    run = subprocess.run(
        ["git", "ls-files", "-z", "txmsg", "examples"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    names = {name for name in run.stdout.split("\0") if name}
    examples = {f"txmsg/ops/demo/{name}" for name in names if name.startswith("examples/")}
    return examples | {name for name in names if name.startswith("txmsg/") and not (ROOT / name).is_dir()}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
