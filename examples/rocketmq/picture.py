"""Draws the growth of the totals as SVG: a line for each, and a band for the outage. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 320, 56, 48, 36
_COLOURS = {"placed": "#666666", "go": "#007d9c", "node": "#3c873a", "spark": "#e25a1c"}


class Sample(NamedTuple):
    """Orders counted by each service at a time."""

    at_s: float
    orders: Mapping[str, int]


def drawn(samples: Sequence[Sample], down_s: tuple[float, float]) -> str:
    """Return the picture. down_s: begin and end of the outage."""
    end_s = max(sample.at_s for sample in samples)
    most = max(max(sample.orders.values()) for sample in samples)

    def x(at_s: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - 16) * at_s / end_s, 1)

    def y(orders: int) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * orders / most, 1)

    began, ended = (x(at_s) for at_s in down_s)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="13"'
    height = _HEIGHT - _BOTTOM - _TOP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<rect x="{began}" y="{_TOP}" width="{ended - began:.1f}" height="{height}" fill="#f4d6d6"/>',
        f'<text x="{began}" y="{_TOP - 6}" fill="#a33">kill -9 of all eight processes</text>',
    ]
    for orders in (0, most // 2, most):
        lines.append(f'<path d="M{_LEFT} {y(orders)}H{_WIDTH - 16}" stroke="#dddddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y(orders) + 4}" text-anchor="end" fill="#444">{orders}</text>')
    for left, (name, colour) in zip((0, 190, 320, 465), _COLOURS.items(), strict=True):
        points = " ".join(f"{x(sample.at_s)},{y(sample.orders[name])}" for sample in samples)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = "placed by Java and Python" if name == "placed" else f"counted by {name.title()}"
        lines.append(f'<text x="{_LEFT + left}" y="18" fill="{colour}">{label}</text>')
    lines.append(f'<text x="{_LEFT}" y="{_HEIGHT - 12}" fill="#444">0 s</text>')
    lines.append(f'<text x="{_WIDTH - 16}" y="{_HEIGHT - 12}" text-anchor="end" fill="#444">{end_s:.0f} s</text>')
    return "\n".join([*lines, "</svg>", ""])
