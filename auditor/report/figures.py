"""The figures of a report: expected and observed laws, acceptance, tokens per target pass, speed-up.

Each returns one SVG as text, or "" where the report holds nothing to draw. Series keep their colour everywhere: s1 what the
rule promises, s2 what was observed, s3 the target, s4 the draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from auditor.efficiency import best_draft_length, expected_tokens, speedup
from auditor.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    WIDTH,
    Scale,
    axes,
    bar,
    curve,
    dot,
    legend,
    line,
    picture,
    ring,
    text,
    y_axis,
)
from auditor.report.words import number, plural, shorten
from auditor.results import CaseResult, LawTable

MOST_OUTCOMES = 12
MOST_POINTS = 400
COST_RATIOS = (10, 20, 50)
PLOT_HEIGHT = 210.0


def laws(table: LawTable, key: str) -> str:
    """Grouped bars over the outcomes: expected and observed side by side, target and draft thin beside them.

    The whiskers of the observed ones span two standard errors each way.
    """
    promised = table.expected or table.target
    shown = _telling(table)
    series = [
        (css, words, values, share)
        for css, words, values, share in (
            ("s1", "expected", table.expected, 1.0),
            ("s2", "observed", table.observed, 1.0),
            ("s3", "target", table.target, 0.45 if table.expected else 1.0),
            ("s4", "draft", table.draft, 0.45),
        )
        if values
    ]
    if not shown or not series:
        return ""
    parts, top = legend([("bar", css, words) for css, words, _, _ in series])
    high = max(_at(values, i) for _, _, values, _ in series for i in shown)
    high = max(high, *(_at(table.observed, i) + _error(table, i) for i in shown))
    y = Scale(0.0, 1.12 * high if high > 0 else 1.0, top + 160, top)
    parts += y_axis(Scale(0, 1, LEFT, WIDTH - RIGHT), y, "probability")
    slot = (WIDTH - RIGHT - LEFT) / len(shown)
    unit = min(42.0, 0.8 * slot / sum(share for _, _, _, share in series))
    labels = [shorten(table.outcomes[i], 16) for i in shown]
    longest = max(len(label) for label in labels)
    slanted = longest * 6.3 > slot
    for k, i in enumerate(shown):
        middle = LEFT + (k + 0.5) * slot
        x = middle - unit * sum(share for _, _, _, share in series) / 2
        for css, words, values, share in series:
            value, width = _at(values, i), unit * share
            parts.append(bar(x, y(value), width - 1, y.start - y(value), css))
            error = _error(table, i)
            if words == "observed" and error > 0:
                parts.append(line(x + width / 2, y(value - error), x + width / 2, y(value + error), "whisker"))
            if share == 1 and unit >= 30:
                over = y(value + (error if words == "observed" else 0)) - 4
                parts.append(text(x + width / 2, over, number(value, 3), "tick small"))
            x += width
        if slanted:
            parts.append(text(middle + 4, y.start + 14, labels[k], "tick", "end", -40))
        else:
            parts.append(text(middle, y.start + 17, labels[k], "tick"))
    gap = max(shown, key=lambda i: abs(_at(table.observed, i) - _at(promised, i)))
    description = (
        f"Bars of {', '.join(words for _, words, _, _ in series)} over {plural(len(shown), 'outcome')}. The largest gap is "
        f"at {table.outcomes[gap]}: expected {number(_at(promised, gap))}, observed {number(_at(table.observed, gap))}."
    )
    height = y.start + (18 + 4.6 * longest if slanted else 26)
    title = f"{table.what}: expected and observed" if table.expected else table.what
    return picture(parts, key, title or "Expected and observed", description, height)


def acceptance_over_overlap(cases: Sequence[CaseResult], key: str) -> str:
    """Acceptance of each case against 1 - TV(p, q), with the diagonal that the rejection rule promises."""
    points = _thin([case for case in cases if case.acceptance is not None])
    if not points:
        return ""
    ringed = [case for case in points if _differs(case.acceptance_expected, 1 - case.tv)]
    entries = [("dot", "s2", "observed"), ("curve", "s1 dashed", "acceptance = 1 − TV")]
    entries += [("ring", "s1", "the rule's own rate")] if ringed else []
    parts, top = legend(entries)
    x, y = Scale(0, 1, LEFT, WIDTH - RIGHT), Scale(0, 1, top + PLOT_HEIGHT, top)
    parts += axes(x, y, "1 − TV(p, q), mean over the positions", "acceptance")
    parts.append(curve([(x(0), y(0)), (x(1), y(1))], "s1 dashed"))
    parts += _observations(x, y, [(1 - case.tv, case) for case in points])
    parts += [ring(x(1 - case.tv), y(case.acceptance_expected or 0.0), "s1") for case in ringed]
    description = f"{plural(len(points), 'case')}. {_off(points)}"
    return picture(parts, key, "Acceptance against 1 − TV(p, q)", description, y.start + BOTTOM)


def acceptance_over_divergence(cases: Sequence[CaseResult], key: str) -> str:
    """Acceptance of each case against KL(p || q), above the bound of Pinsker and of Bretagnolle and Huber."""
    points = _thin([case for case in cases if case.acceptance is not None])
    if not points:
        return ""
    parts, top = legend([("dot", "s2", "observed"), ("curve", "s1 dashed", "least 1 − TV at this KL")])
    low = min((case.kl for case in points if case.kl > 1e-4), default=1e-2)
    high = max(max(case.kl for case in points), 1.0)
    x = Scale(10.0 ** math.floor(math.log10(min(low, 1e-1))), high * 1.1, LEFT, WIDTH - RIGHT, log=True)
    y = Scale(0, 1, top + PLOT_HEIGHT, top)
    parts += axes(x, y, "KL(p ‖ q) in nats, mean over the positions", "acceptance")
    kl = np.geomspace(x.low, x.high, 80)
    bound = 1 - np.minimum(np.sqrt(kl / 2), np.sqrt(-np.expm1(-kl)))
    parts.append(curve([(x(a), y(b)) for a, b in zip(kl.tolist(), bound.tolist(), strict=True)], "s1 dashed"))
    parts += _observations(x, y, [(max(case.kl, x.low), case) for case in points])
    description = (
        f"{plural(len(points), 'case')}, KL from {number(min(case.kl for case in points), 2)} to {number(high, 2)} nats. The "
        "dashed line is the least overlap that two laws of that divergence can have."
    )
    return picture(parts, key, "Acceptance against KL(p ‖ q)", description, y.start + BOTTOM)


def tokens_over_length(cases: Sequence[CaseResult], acceptance: float | None, key: str) -> str:
    """Tokens per target pass of each case over its draft length, with the formula at a few acceptance rates."""
    points = _thin([case for case in cases if case.tokens_per_pass is not None and 0 < case.case.gamma <= 1000])
    if not points:
        return ""
    longest = max(case.case.gamma for case in points)
    entries = [("dot", "s2", "observed"), ("ring", "s1", "expected"), ("curve", "faint", "formula, by acceptance")]
    rates = [0.5, 0.7, 0.8, 0.9, 1.0]
    measured = acceptance is not None and 0 <= acceptance <= 1
    entries += [("curve", "s1", f"at the measured {number(acceptance, 2)}")] if measured else []
    parts, top = legend(entries)
    x = Scale(0, longest + 0.04 * longest + 0.3, LEFT, WIDTH - RIGHT - 24)
    y = Scale(1, max(2.0, *(case.tokens_per_pass or 0.0 for case in points)) * 1.06, top + PLOT_HEIGHT, top)
    parts += axes(x, y, "draft length gamma", "tokens per target pass")
    lengths = np.unique(np.linspace(0, longest, min(longest + 1, 120)).astype(np.int64))
    for rate in rates + ([acceptance] if measured and acceptance is not None else []):
        height = expected_tokens(rate, lengths)
        inside = [(a, b) for a, b in zip(lengths.tolist(), height.tolist(), strict=True) if b <= y.high]
        parts.append(curve([(x(a), y(b)) for a, b in inside], "s1" if rate not in rates else "faint"))
        if rate in rates and inside[-1][0] > 0:
            place = x.end + 4 if inside[-1][0] == longest else x(inside[-1][0]) + 5
            parts.append(text(place, y(inside[-1][1]) + 4, number(rate), "tick small", "start"))
    for k, case in enumerate(points):
        place = x(case.case.gamma) + 1.6 * (k % 7 - 3)
        if case.tokens_per_pass_expected is not None:
            parts.append(ring(place, y(case.tokens_per_pass_expected), "s1"))
        parts.append(dot(place, y(case.tokens_per_pass or 0.0), "s2"))
    worst = max(points, key=lambda case: _distance(case.tokens_per_pass, case.tokens_per_pass_expected))
    description = (
        f"{plural(len(points), 'case')} with draft lengths up to {longest}. The largest difference: observed "
        f"{number(worst.tokens_per_pass)}, expected {number(worst.tokens_per_pass_expected)} at gamma {worst.case.gamma}."
    )
    return picture(parts, key, "Tokens per target pass over draft length", description, y.start + BOTTOM)


def speedup_over_length(acceptance: float | None, key: str) -> str:
    """The speed-up over draft length at the measured acceptance, for a few cost ratios, the best length marked."""
    if acceptance is None or not 0 <= acceptance <= 1:
        return ""
    best = [best_draft_length(acceptance, ratio) for ratio in COST_RATIOS]
    longest = min(128, max(12, 2 * max(best)))
    lengths = np.arange(longest + 1)
    gains = [speedup(acceptance, lengths, ratio) for ratio in COST_RATIOS]
    parts, top = legend(
        [("curve", f"s{k}", f"cost ratio {ratio}") for k, ratio in enumerate(COST_RATIOS, start=1)]
        + [("ring", "", "best length")]
    )
    x = Scale(0, longest, LEFT, WIDTH - RIGHT)
    low = min(1.0, *(float(gain.min()) for gain in gains))
    y = Scale(0.9 * low, 1.12 * max(float(gain.max()) for gain in gains), top + PLOT_HEIGHT, top)
    parts += axes(x, y, "draft length gamma", "times faster than plain decoding")
    parts.append(line(x.start, y(1), x.end, y(1), "axis"))
    said = []
    for k, (ratio, length, gain) in enumerate(zip(COST_RATIOS, best, gains, strict=True), start=1):
        parts.append(curve([(x(a), y(b)) for a, b in zip(lengths.tolist(), gain.tolist(), strict=True)], f"s{k}"))
        top_gain = float(gain[length])
        parts.append(ring(x(length), y(top_gain), f"s{k}", 5.5))
        label = f"{top_gain:.2f}× at {length}" if length else "does not pay"
        parts.append(text(max(x(length), LEFT + 40), y(top_gain) - 9, label, "tick"))
        said.append(f"{number(top_gain, 3)} at draft length {length} where a target pass costs {ratio} draft passes")
    description = f"At acceptance {number(acceptance, 3)} the best speed-up is {'; '.join(said)}."
    return picture(parts, key, "Speed-up over draft length", description, y.start + BOTTOM)


def _observations(x: Scale, y: Scale, points: Sequence[tuple[float, CaseResult]]) -> list[str]:
    parts = []
    for place, case in points:
        if case.acceptance_interval is not None and len(points) <= 80:
            low, high = case.acceptance_interval
            parts.append(line(x(place), y(low), x(place), y(high), "whisker"))
    return parts + [dot(x(place), y(case.acceptance or 0.0), "s2") for place, case in points]


def _telling(table: LawTable) -> list[int]:
    promised = table.expected or table.target
    by_gap = sorted(range(len(table.outcomes)), key=lambda i: -abs(_at(table.observed, i) - _at(promised, i)))
    return sorted(by_gap[:MOST_OUTCOMES])


def _error(table: LawTable, index: int) -> float:
    """Two standard errors of an observed share."""
    share = _at(table.observed, index)
    return 2 * math.sqrt(max(0.0, share * (1 - share)) / table.draws) if table.draws > 0 else 0.0


def _at(values: Sequence[float] | None, index: int) -> float:
    return values[index] if values is not None and index < len(values) else 0.0


def _differs(expected: float | None, overlap: float) -> bool:
    return expected is not None and abs(expected - overlap) > 0.005


def _distance(observed: float | None, expected: float | None) -> float:
    return abs(observed - expected) if observed is not None and expected is not None else 0.0


def _off(points: Sequence[CaseResult]) -> str:
    worst = max(points, key=lambda case: _distance(case.acceptance, case.acceptance_expected))
    if worst.acceptance_expected is None:
        return ""
    return (
        f"The largest difference: accepted {number(worst.acceptance)}, expected {number(worst.acceptance_expected)}, at "
        f"1 − TV = {number(1 - worst.tv)}."
    )


def _thin(cases: list[CaseResult]) -> list[CaseResult]:
    """Evenly spaced cases where there are more than a picture can show."""
    if len(cases) <= MOST_POINTS:
        return cases
    return [cases[int(k)] for k in np.linspace(0, len(cases) - 1, MOST_POINTS)]
