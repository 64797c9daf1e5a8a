"""The checks that are not bets on a case's law: warm-up, reproducibility, independence of seeds and rows, the exact law."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from auditor.bets.boxes import boxes
from auditor.bets.independence import Match, across_calls, along_rows, verdict
from auditor.bets.tally import Endings, Tally, read_rounds
from auditor.cases import Case, family_case
from auditor.draws import drafts_from
from auditor.errors import BadAnswer, CallFailed
from auditor.rules import DraftResidual
from auditor.visits import CONTROL, Malformed, ModeAudit, first_position

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

WARM_UP = 2048
NEAR_SEEDS = (1, 2**16)
"""Distances of seeds whose draws may overlap: the next seed, and one that agrees in the low bits."""
CALLS, PROBE_ROWS = 40, (8, 64)
"""Calls of each probe, in pairs of near seeds, and rows of a call."""
WARM_UP_SECONDS = 1.0

_HOT = np.eye(8)[:1]
_REST = np.concatenate([[0.0], np.full(7, 1 / 7)])[None]
_EVEN = np.full((1, 8), 1 / 8)
PROBES = (
    (Case(np.concatenate([(_HOT + _REST) / 2, _EVEN]), _HOT, "probe: a coin", "probe"), "acceptance"),
    (Case(np.concatenate([_REST, _EVEN]), _HOT, "probe: always rejected", "probe"), "residual draw"),
    (Case(np.concatenate([_HOT, _EVEN]), _HOT, "probe: always accepted", "probe"), "bonus draw"),
)
"""Cases whose rows have equal inputs, the draft included: a coin, a residual draw, a bonus draw."""


def warm_up(audit: ModeAudit) -> bool:
    """Rounds that feed no evidence: is there an answer, how fast, and how are ambiguous endings to be taken.

    Returns whether `sample`, where there is one, says which drafts were accepted.
    """
    shows = True
    for method in ("verify", "sample"):
        if not audit.usable(method):
            continue
        n, done, start = 16, 0, time.perf_counter()
        tally: Tally | None = None
        try:
            while done < WARM_UP and time.perf_counter() - start < WARM_UP_SECONDS:
                begin = time.perf_counter()
                if method == "verify":
                    drafts, tokens = audit.draw_rounds(CONTROL, n)
                    part = read_rounds(audit.book(CONTROL).reading, drafts, tokens)
                    tally = part if tally is None else tally + part
                else:
                    one = first_position(CONTROL)
                    shows = audit.subject.sample(one.p[0], one.q[0], n, audit.seeds.next())[1] is not None
                done += n
                audit.speed[method] = n / max(time.perf_counter() - begin, 1e-6)
                n = min(n * 4, max(16, int(audit.speed[method] * WARM_UP_SECONDS / 4)))
            if tally is not None:
                seen = [audit.book(CONTROL).endings(tally)]
                for case in warm_up_cases():
                    book = audit.book(case)
                    n = int(np.clip(audit.speed[method] * 0.1, 16, 1024))
                    seen.append(book.endings(read_rounds(book.reading, *audit.draw_rounds(case, n))))
                audit.endings = combined(seen)
            _measure(audit, method)
        except CallFailed as failure:
            audit.failed(failure, CONTROL)
        except BadAnswer as bad:
            audit.bad_answer(bad, method, CONTROL)
    return shows


def warm_up_cases() -> list[Case]:
    """A few more ordinary cases, to see how rounds end."""
    return [family_case("dirichlet", 6, 3, seed) for seed in (1, 2, 3)]


def combined(seen: list[Endings]) -> Endings:
    """Endings of several cases together: rejections elsewhere on any of them, or missing bonus tokens on any of them."""
    elsewhere = any(not e.missing for e in seen)
    missing = any(not e.rejections for e in seen)
    return Endings(missing=not elsewhere, rejections=elsewhere or not missing)


def _measure(audit: ModeAudit, method: str) -> None:
    """Rounds a second in one call of a size that the audit will use."""
    n = int(np.clip(audit.speed[method] * 0.05, 16, 20_000))
    start = time.perf_counter()
    if method == "verify":
        audit.draw_rounds(CONTROL, n)
    else:
        one = first_position(CONTROL)
        audit.subject.sample(one.p[0], one.q[0], n, audit.seeds.next())
    audit.speed[method] = n / max(time.perf_counter() - start, 1e-6)


def reproducibility(audit: ModeAudit) -> int:
    """The same calls twice with one seed; returns how many pairs of answers were compared."""
    compared = 0
    for method in ("verify", "sample"):
        if not audit.usable(method):
            continue
        try:
            for case in (CONTROL, PROBES[1][0]):
                n = min(64, audit.subject.rows(case.gamma, case.vocab))
                seed, drafts = audit.seeds.next(), drafts_from(case.q, n, audit.seeds.generator())
                answers = [_answer(audit, method, case, drafts, seed) for _ in range(2)]
                compared += 1
                if not np.array_equal(answers[0], answers[1]):
                    different = int((answers[0] != answers[1]).sum())
                    text = (
                        f"{method} called twice with seed {seed} gave answers that differ in {different} of {n} rounds"
                    )
                    audit.malformed.append(Malformed("seed", text, method, case, seed))
                    audit.violated("seed-reproducibility", method, 0.0)
                    break
        except CallFailed as failure:
            audit.failed(failure, CONTROL)
        except BadAnswer as bad:
            audit.bad_answer(bad, method, CONTROL)
    return compared


def _answer(audit: ModeAudit, method: str, case: Case, drafts: IntArray, seed: int, coin: bool = False) -> IntArray:
    """One call's outcomes [n], coded as integers; of a `coin` just whether the first draft was accepted, where that is shown."""
    if method == "verify":
        n = len(drafts)
        p, q = np.broadcast_to(case.p, (n, *case.p.shape)), np.broadcast_to(case.q, (n, *case.q.shape))
        rounds = audit.subject.verify(p, q, drafts, seed)
        return (rounds[:, 1] >= 0).astype(np.int64) if coin else _codes(rounds, case.vocab)
    tokens, accepted = audit.subject.sample(case.p[0], case.q[0], len(drafts), seed)
    if coin and accepted is not None:
        return accepted.astype(np.int64)
    return tokens if accepted is None else tokens * 2 + accepted


def _codes(tokens: IntArray, vocab: int) -> IntArray:
    return (tokens + 1) @ (vocab + 1) ** np.arange(tokens.shape[1])


def independence(audit: ModeAudit) -> dict[str, tuple[float, int, Match | None]]:
    """Evidence against independence of seeds and of rows: log e-value, outcomes compared, the loudest comparison, by claim."""
    seeds: list[Match] = []
    rows: list[Match] = []
    for method in ("verify", "sample"):
        if not audit.usable(method):
            continue
        try:
            for case, what in PROBES if method == "verify" else PROBES[:2]:
                n = int(np.clip(audit.speed.get(method, 1e3) * 0.1 / CALLS, *PROBE_ROWS))
                if method == "verify":
                    n = min(n, audit.subject.rows(case.gamma, case.vocab))
                drafts = np.zeros((n, 1), np.int64)
                answers = []
                for k in range(CALLS // 2):
                    seed = audit.seeds.next()
                    near = (seed + NEAR_SEEDS[k % len(NEAR_SEEDS)]) % 2**31
                    answers += [
                        _answer(audit, method, case, drafts, s, coin=what == "acceptance") for s in (seed, near)
                    ]
                for k, step in enumerate(NEAR_SEEDS):
                    pairs = list(
                        zip(
                            answers[2 * k :: 2 * len(NEAR_SEEDS)],
                            answers[2 * k + 1 :: 2 * len(NEAR_SEEDS)],
                            strict=True,
                        )
                    )
                    seeds += across_calls(pairs, f"{what}, seeds {step} apart")
                if method == "verify" and n > 1:
                    rows += along_rows(np.stack(answers), what)
        except CallFailed as failure:
            audit.failed(failure, CONTROL)
        except BadAnswer as bad:
            audit.bad_answer(bad, method, CONTROL)
    return {"seed-independence": verdict(seeds), "row-independence": verdict(rows)}


def exact_law(audit: ModeAudit, cases: list[Case]) -> int:
    """The adapter's own law against the box, number by number; returns how many numbers were compared."""
    compared = 0
    for case in cases:
        if not audit.usable("law") or audit.budget.seconds > audit.budget.max_seconds:
            break
        rows = min(case.vocab, 16, audit.subject.rows(case.gamma, case.vocab))
        drafts = (np.arange(rows)[:, None] * max(1, case.vocab // rows) + np.arange(case.gamma)) % case.vocab
        shape = (rows, case.gamma, case.vocab)
        try:
            law = audit.subject.law(
                np.broadcast_to(case.p, (rows, *case.p.shape)), np.broadcast_to(case.q, shape), drafts
            )
        except CallFailed as failure:
            audit.failed(failure, case)
            continue
        except BadAnswer as bad:
            audit.bad_answer(bad, "law", case)
            continue
        compared += law.accept.size + law.residual.size + law.bonus.size
        wrong = _outside(audit, case, drafts, law.accept, law.residual, law.bonus)
        if wrong:
            audit.malformed.append(Malformed("law", wrong, "law", case, audit.seeds.count))
            audit.violated("exact-law", "law", 0.0)
            break
    return compared


def _outside(
    audit: ModeAudit, case: Case, drafts: IntArray, accept: FloatArray, residual: FloatArray, bonus: FloatArray
) -> str:
    """Words for the first number outside its box; empty where there is none. Drafts that q excludes are not looked at."""
    box = boxes(audit.rule, audit.subject.precision, case.p, case.q)
    by_draft = isinstance(audit.rule.residual, DraftResidual)
    for b, i in np.ndindex(drafts.shape):
        x = int(drafts[b, i])
        if case.q[i, x] <= 0:
            continue
        low, up, value = float(box.accept_low[i, x]), float(box.accept_up[i, x]), float(accept[b, i])
        if not low - _SLACK <= value <= up + _SLACK:
            return (
                f"draft {x} at position {i} (p = {case.p[i, x]:.6g}, q = {case.q[i, x]:.6g}) is accepted with probability "
                f"{value:.8g}; the rule says {_within(low, up)}"
            )
        lower, upper = box.residual_after(i, x) if by_draft else box.residual(i)
        if not residual[b, i].any():
            # Where the box allows any fallback, p - q may vanish in the implementation's arithmetic.
            if up < 1 and lower.any():
                return f"draft {x} at position {i} has an empty residual although it is rejected with probability {1 - up:.3g}"
            continue
        text = _first_outside(residual[b, i], lower, upper, f"after rejecting {x} at position {i}")
        if text:
            return text
    lower, upper = box.bonus()
    return _first_outside(bonus[0], lower, upper, "as bonus token")


_SLACK = 1e-12


def _first_outside(law: FloatArray, low: FloatArray, up: FloatArray, where: str) -> str:
    off = np.flatnonzero((law < low - _SLACK) | (law > up + _SLACK))
    if not len(off):
        return ""
    y = int(off[np.argmax(np.maximum(low - law, law - up)[off])])
    return (
        f"token {y} follows {where} with probability {law[y]:.8g}; the rule says {_within(float(low[y]), float(up[y]))}"
    )


def _within(low: float, up: float) -> str:
    return f"{low:.8g}" if up - low < 1e-9 else f"{low:.8g} to {up:.8g}"
