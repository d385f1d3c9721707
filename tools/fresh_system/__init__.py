"""Minimal Debian systems, in which the README's commands run from a fresh clone.

`python3 -m tools.fresh_system --help`. Needs root, debootstrap, util-linux and a kernel with overlayfs. Uses the
standard library only, because it runs with the system's own Python.
"""
