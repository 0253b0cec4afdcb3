"""A line chart as SVG, without any library: for files that go into documents and that need no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from kvsim.units import si

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, LINE = 70, 20, 44, 18
"""Margins, and the height of a line of text [px]."""
COLOURS = ("#9A6F00", "#8F63C9", "#6E7B8B", "#B0517A", "#4F7A00", "#0072B2")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 4")
"""Lines differ in their dashes as well as in colour."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name, and points (x, y) with x > 0."""

    name: str
    points: tuple[tuple[float, float], ...]


def log_percent_chart(title: str, axes: tuple[str, str], series: Sequence[Series],
                      marks: Sequence[tuple[str, float]] = ()) -> str:
    """Percentages over a logarithmic axis.

    Parameters
    ----------
    title : str
        Stands above the chart and is read out by screen readers.
    axes : tuple of str
        Titles of the horizontal (logarithmic) and the vertical axis (0 to 100 %).
    series : sequence of Series
        Lines, with y in 0 to 100.
    marks : sequence of (str, float)
        Horizontal lines with a name, for limits.

    Returns
    -------
    str
        A whole SVG document.

    Examples
    --------
    >>> drawn = log_percent_chart("a<b", ("x", "y (%)"), [Series("lru", ((10.0, 5.0), (1000.0, 80.0)))])
    >>> drawn[:4], "a&lt;b" in drawn, drawn.count("<polyline")
    ('<svg', True, 1)
    """
    bottom = TOP + LINE * 3 + LINE * math.ceil((len(series) + len(marks)) / 3)
    frame = _Frame(_decades(series), HEIGHT - bottom)
    lines = [_line(s, n, frame) for n, s in enumerate(series)]
    head = _text(LEFT, 24, title, "font-size='16'")
    body = [head, *_grid(frame, axes), *(_mark(name, y, frame) for name, y in marks), *lines, *_legend(series, frame)]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'role="img" font-family="system-ui, sans-serif" font-size="13"><title>{escape(title)}</title>'
            f'<rect width="100%" height="100%" fill="white"/>{"".join(body)}</svg>\n')


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values stand: whole decades from left to right, 0 to 100 from `base` [px] to the top."""

    decades: tuple[int, int]
    base: float

    def x(self, value: float) -> float:
        low, high = self.decades
        return LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.base - value / 100 * (self.base - TOP)


def _decades(series: Sequence[Series]) -> tuple[int, int]:
    xs = [x for s in series for x, _ in s.points] or [1.0]
    low, high = math.floor(math.log10(min(xs)) + 1e-9), math.ceil(math.log10(max(xs)) - 1e-9)
    return low, max(high, low + 1)


def _grid(frame: _Frame, axes: tuple[str, str]) -> list[str]:
    drawn: list[str] = []
    for percent in range(0, 101, 20):
        y = frame.y(percent)
        drawn += [f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>',
                  _text(LEFT - 8, y + 4, str(percent), "text-anchor='end'")]
    for decade in range(frame.decades[0], frame.decades[1] + 1):
        x = frame.x(10.0**decade)
        drawn += [f'<path d="M{x:.1f} {TOP}V{frame.base:.1f}" stroke="#ddd"/>',
                  _text(x, frame.base + LINE, si(10.0**decade, ""), "text-anchor='middle'")]
    middle = (TOP + frame.base) / 2
    return [*drawn, _text((LEFT + WIDTH - RIGHT) / 2, frame.base + 2 * LINE + 4, axes[0], "text-anchor='middle'"),
            _text(18, middle, axes[1], f"text-anchor='middle' transform='rotate(-90 18 {middle:.1f})'")]


def _line(series: Series, number: int, frame: _Frame) -> str:
    points = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in series.points)
    dots = "".join(f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3" fill="{_colour(number)}"/>'
                   for x, y in series.points)
    return f'<polyline points="{points}" fill="none" {_stroke(number)}/>{dots}'


def _mark(name: str, percent: float, frame: _Frame) -> str:
    y = frame.y(percent)
    return (f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#808080" stroke-dasharray="3 4"/>'
            + _text(LEFT + 4, y - 5, name, "fill='#555'"))


def _legend(series: Sequence[Series], frame: _Frame) -> list[str]:
    drawn: list[str] = []
    for n, s in enumerate(series):
        x, y = LEFT + (n % 3) * (WIDTH - LEFT - RIGHT) / 3, frame.base + (3.4 + n // 3) * LINE
        drawn += [f'<path d="M{x:.1f} {y - 4:.1f}h28" {_stroke(n)}/>', _text(x + 34, y, s.name, "")]
    return drawn


def _stroke(number: int) -> str:
    dash = DASHES[number % len(DASHES)]
    return f'stroke="{_colour(number)}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'
