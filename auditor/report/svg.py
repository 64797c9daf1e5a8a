"""A few strokes of SVG: scales with round ticks, axes, marks, and a picture that says what it shows.

Colours and fonts come from the style sheet of the page that the picture is embedded in (classes `s1` ... `s5` for series),
so that it follows dark, light and print. Coordinates are pixels of a view box `WIDTH` wide, which the page scales.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 400
LEFT, RIGHT, BOTTOM = 54, 12, 40


@dataclass(frozen=True)
class Scale:
    """From data to pixels. Values outside of [low, high] are drawn at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """About five round values with their labels."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            stride = max(1, round((last - first) / 5))
            return [(10.0**k, f"{10.0**k:g}") for k in range(first, last + 1, stride)]
        span = self.high - self.low
        if not span > 0:
            return [(self.low, f"{self.low:g}")]
        step = next(step for step in _round_steps(span) if span / step <= 6)
        lowest = math.ceil(self.low / step - 1e-9)
        return [(k * step, f"{k * step:.6g}") for k in range(lowest, math.floor(self.high / step + 1e-9) + 1)]


def _round_steps(span: float) -> list[float]:
    unit = 10.0 ** math.floor(math.log10(span) - 1)
    return [unit * factor for factor in (1, 2, 5, 10, 20, 50, 100)]


def text(x: float, y: float, words: str, css: str = "", anchor: str = "middle", rotate: int = 0) -> str:
    """A label; `anchor` is start, middle or end."""
    turn = f' transform="rotate({rotate} {x:.1f} {y:.1f})"' if rotate else ""
    style = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}{turn}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def bar(x: float, y: float, width: float, height: float, css: str) -> str:
    """A filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(0.0, height):.1f}" class="{css}"/>'


def dot(x: float, y: float, css: str, radius: float = 3.2) -> str:
    """A filled circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="dot {css}"/>'


def ring(x: float, y: float, css: str, radius: float = 4.6) -> str:
    """A hollow circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="ring {css}"/>'


def curve(points: Sequence[tuple[float, float]], css: str) -> str:
    """A line through the points."""
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="curve {css}"/>'


def axes(x: Scale, y: Scale, x_label: str, y_label: str) -> list[str]:
    """Both axes, the vertical one with grid lines."""
    parts = y_axis(x, y, y_label)
    for value, label in x.ticks():
        parts.append(line(x(value), y.start, x(value), y.start + 4, "axis"))
        parts.append(text(x(value), y.start + 17, label, "tick"))
    return [*parts, text((x.start + x.end) / 2, y.start + 35, x_label, "label")]


def y_axis(x: Scale, y: Scale, label: str) -> list[str]:
    """Grid lines with their values, the base line, and the name of the vertical axis."""
    parts = []
    for value, words in y.ticks():
        parts.append(line(x.start, y(value), x.end, y(value), "grid"))
        parts.append(text(x.start - 7, y(value) + 4, words, "tick", "end"))
    parts.append(line(x.start, y.start, x.end, y.start, "axis"))
    return [*parts, text(11, (y.start + y.end) / 2, label, "label", rotate=-90)]


def legend(entries: Sequence[tuple[str, str, str]], y: float = 14) -> tuple[list[str], float]:
    """(mark, class, words) from left to right, wrapped; mark is bar, dot, ring or curve. Returns parts and the next y."""
    parts: list[str] = []
    x = float(LEFT)
    for mark, css, words in entries:
        width = 30 + 6.7 * len(words)
        if x > LEFT and x + width > WIDTH:
            x, y = float(LEFT), y + 18
        if mark == "bar":
            parts.append(bar(x, y - 9, 14, 10, css))
        elif mark == "curve":
            parts.append(curve([(x, y - 4), (x + 15, y - 4)], css))
        else:
            parts.append((dot if mark == "dot" else ring)(x + 8, y - 4, css))
        parts.append(text(x + 20, y, words, "tick", "start"))
        x += width
    return parts, y + 12


def picture(parts: Sequence[str], key: str, title: str, description: str, height: float) -> str:
    """The whole picture. `key` is unique within the page; title and description are its alternative text."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-labelledby="{escape(key)}-t {escape(key)}-d"><title id="{escape(key)}-t">{escape(title)}</title>'
        f'<desc id="{escape(key)}-d">{escape(description)}</desc>{"".join(parts)}</svg>'
    )
