"""All bets of the audit on one case: from the tally of a visit to log pay-offs, claim by claim.

The bets of a claim are the same on every case (`BETS` lists them by name), so that their products over cases are sums of these
log pay-offs. They depend on the case alone, never on what was drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.bets.boxes import Boxes, Precision, boxes
from auditor.bets.fields import (
    SEVERITIES,
    Bernoulli,
    Categorical,
    Classes,
    Features,
    Score,
    classes,
    tilted_laws,
    tilted_rates,
    tilts_per,
)
from auditor.bets.tally import LEVELS, Endings, Reading, Tally, level_of, level_value
from auditor.cases import Case
from auditor.evidence import dot, log_bets_bernoulli
from auditor.rules import FAULTS, DraftResidual, Laws, Rule, laws

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

ACCEPT = tuple(name for name, fault in FAULTS.items() if "accept" in fault.touches)
RESIDUAL = tuple(name for name, fault in FAULTS.items() if "residual" in fault.touches)
BONUS = tuple(name for name, fault in FAULTS.items() if "bonus" in fault.touches)
EMITTED = tuple(name for name, fault in FAULTS.items() if fault.touches - {"structure"} and not fault.shares_uniform)
LENGTH = tuple(name for name in FAULTS if name in ACCEPT or FAULTS[name].drops_bonus)
ALIGNMENT = tuple(name for name, fault in FAULTS.items() if fault.alignment)

DIRECTED: dict[str, tuple[str, ...]] = {
    "acceptance-law": ACCEPT,
    "acceptance-rate": ACCEPT,
    "residual-law": RESIDUAL,
    "bonus-token": BONUS,
    "output-law": EMITTED,
    "round-length": LENGTH,
    "position-alignment": ALIGNMENT,
    "support": (),
}
"""The catalogued faults that a claim bets on, each at every one of the `SEVERITIES`."""

OUTSIDE = (0.1, 0.01, 1e-3, 1e-4, 1e-5)
"""Masses outside the support that `support` bets on."""

_TRACKED_CELLS = 65536
_EVERY_CELL = 4096
_STRUCTURE_BROKEN = 30.0
"""Nats of a round that keeps drafts behind a rejection: impossible under every other rule, so any large number will do."""


def directed_bets(claim: str) -> tuple[tuple[str, float], ...]:
    """(fault, severity) of each directed bet of a claim, in the order of its pay-offs."""
    return tuple((fault, severity) for fault in DIRECTED[claim] for severity in SEVERITIES)


@dataclass(frozen=True)
class Evidence:
    """What one visit says: a score per claim; joint log pay-offs [fault, severity] over all events, for the name alone."""

    scores: dict[str, Score]
    joint: FloatArray


JOINT = tuple(FAULTS)
_S = len(SEVERITIES)


def _mixtures(null: FloatArray, wrong: FloatArray) -> FloatArray:
    """(1 - s) null + s wrong for each fault of wrong [K, ...] and each severity: [K * S, ...]."""
    s = np.array(SEVERITIES).reshape(-1, *[1] * null.ndim)
    return ((1 - s) * null + s * wrong[:, None]).reshape(len(wrong) * _S, *null.shape)


def _features(p: FloatArray, q: FloatArray, accept: FloatArray, residual: FloatArray, order: FloatArray) -> FloatArray:
    """Features [F, C] of tokens, all finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p = np.clip(np.where(p > 0, np.log(p), -70.0), -70, 0)
        log_q = np.clip(np.where(q > 0, np.log(q), -70.0), -70, 0)
    return np.stack([np.clip(log_p - log_q, -20, 20), (p > q).astype(float), log_p, log_q, accept, residual, order])


TOKEN_FEATURES = 7


@dataclass(frozen=True)
class _Position:
    """One position seen through its classes of tokens."""

    groups: Classes
    features: FloatArray
    never: int
    always: int


@dataclass(frozen=True)
class RoundBook:
    """The bets on whole rounds (`verify`) of one case under a correct rule and a precision."""

    case: Case
    rule: Rule
    precision: Precision

    @cached_property
    def right(self) -> Laws:
        """The rule's own laws."""
        return laws(self.rule, self.case.p, self.case.q, self.rule)

    @cached_property
    def box(self) -> Boxes:
        """What is allowed."""
        return boxes(self.rule, self.precision, self.case.p, self.case.q)

    @cached_property
    def wrong(self) -> dict[str, Laws]:
        """Every fault's laws on this case."""
        return {name: laws(fault, self.case.p, self.case.q, self.rule) for name, fault in FAULTS.items()}

    @property
    def by_draft(self) -> bool:
        """Whether the rule's own residual depends on the rejected draft."""
        return isinstance(self.rule.residual, DraftResidual)

    @cached_property
    def reading(self) -> Reading:
        """What a tally of this case needs to know."""
        gamma, vocab = self.case.gamma, self.case.vocab
        # Residual draws are counted draft by draft for the drafts rejected most often, as many as stay cheap.
        tracks = max(1, min(vocab, _TRACKED_CELLS // vocab if not self.by_draft else 8192 // vocab))
        tracked = np.full((gamma, vocab), -1, np.int64)
        for i in range(gamma):
            weight = self.case.q[i] * (1 - self.right.accept[i])
            likely = np.argpartition(-weight, tracks - 1)[:tracks] if tracks < vocab else np.arange(vocab)
            tracked[i, likely] = np.arange(tracks)
        return Reading(vocab, gamma, tracked, tracks, level_of(self.right.accept))

    @cached_property
    def sure(self) -> npt.NDArray[np.bool_]:
        """Last drafts [V] whose repetition at the end of a round can only be a missing bonus token."""
        if self.by_draft:
            return np.ones(self.case.vocab, bool)
        return np.asarray(self.box.accept_low[-1] >= 1 - 4 * self.precision.resolution)

    # ---------------------------------------------------------------------------------------- positions and classes

    @cached_property
    def positions(self) -> list[_Position]:
        """Classes and features of the tokens at each position, the bonus position last."""
        case, out = self.case, []
        for i in range(case.gamma + 1):
            p, q = case.p[i], case.q[min(i, case.gamma - 1)]
            groups = classes(p, q)
            with np.errstate(divide="ignore", invalid="ignore"):
                accept = np.minimum(1.0, np.where(q > 0, p / np.where(q > 0, q, 1.0), 1.0))
            order = np.arange(case.vocab) / max(1, case.vocab - 1)
            residual = np.maximum(p - q, 0.0)
            if groups.of is None:
                h = _features(p, q, accept, residual, order)
                out.append(_Position(groups, h, case.vocab - 1, int(p.argmax())))
                continue
            size = np.bincount(groups.of)
            mean = [groups.group(v) / size for v in (accept, order)]
            h = _features(groups.group(p), groups.group(q), mean[0], groups.group(residual), mean[1])
            out.append(_Position(groups, h, int(groups.of[-1]), int(groups.of[p.argmax()])))
        return out

    def tilts(self, null: FloatArray, positions: list[int], width: int) -> FloatArray:
        """Tilted laws [T, M, C] around null [M, C] at the given positions."""
        chosen = [self.positions[i] for i in positions]
        values = np.stack([_pad(c.features, width) for c in chosen], 1)
        never, always = (np.array([getattr(c, name) for c in chosen]) for name in ("never", "always"))
        return tilted_laws(null, Features(values, never, always))

    def _categorical(
        self,
        positions: list[int],
        null_of: Callable[[int], FloatArray],
        box_of: Callable[[int], tuple[FloatArray, FloatArray]],
        directed_of: Callable[[int], FloatArray],
    ) -> Categorical:
        """Independent laws at `positions`; `directed_of(position)` gives the bets' laws over classes of tokens [K, C]."""
        width = max(self.positions[i].groups.size for i in positions)
        null, low, up, directed = [], [], [], []
        for i in positions:
            group = self.positions[i].groups.group
            a, b = box_of(i)
            null.append(_pad(group(null_of(i)), width))
            low.append(_pad(np.minimum(group(a), 1.0), width))
            up.append(_pad(np.minimum(group(b), 1.0), width))
            directed.append(_pad(directed_of(i), width))
        base = np.stack(null)
        tilted = self.tilts(base, positions, width)
        return Categorical(base, np.stack(low), np.stack(up), np.stack(directed, 1), tilted)

    def _grouped(self, counts: IntArray, positions: list[int], width: int) -> IntArray:
        return np.stack([_pad(self.positions[i].groups.group(counts[k]), width) for k, i in enumerate(positions)])

    # ---------------------------------------------------------------------------------------------------- fields

    @cached_property
    def residual_field(self) -> Categorical:
        """Residual draws [gamma] under a rule whose residual does not depend on the draft."""
        right = self.right.residual
        assert right is not None

        def directed_of(i: int) -> FloatArray:
            # A residual that depends on the draft is bet on draft by draft (`pair_fields`), not here.
            group = self.positions[i].groups.group
            own = group(right[i])
            rows = [self.wrong[f].residual for f in RESIDUAL]
            return _mixtures(own, np.stack([own if row is None else group(row[i]) for row in rows]))

        return self._categorical(list(range(self.case.gamma)), lambda i: right[i], self.box.residual, directed_of)

    @cached_property
    def pair_faults(self) -> tuple[str, ...]:
        """Faults whose residual draws are bet on draft by draft."""
        if self.by_draft:
            return RESIDUAL
        return tuple(name for name in RESIDUAL if self.wrong[name].residual is None)

    def _pair_field(self, i: int, x: IntArray) -> Categorical:
        """Residual draws at a position after each of the drafts x: laws over tokens, one per draft."""
        right = self.right.given(i, x)
        if self.by_draft:
            bounds = [self.box.residual_after(i, int(d)) for d in x]
            low, up = np.stack([b[0] for b in bounds]), np.stack([b[1] for b in bounds])
        else:
            low, up = (np.broadcast_to(side, right.shape) for side in self.box.residual(i))
        directed = _mixtures(right, np.stack([self.wrong[name].given(i, x) for name in self.pair_faults]))
        tilted = np.zeros((0, *right.shape))
        if self.by_draft:
            at = self.positions[i]
            if at.groups.of is None:
                h = np.broadcast_to(at.features[:, None, :], (len(at.features), *right.shape))
                tilted = tilted_laws(right, Features(h, np.full(len(x), at.never), np.full(len(x), at.always)))
            else:
                tilted = np.broadcast_to(right, (tilts_per(TOKEN_FEATURES), *right.shape))
        return Categorical(right, low, up, directed, tilted)

    @cached_property
    def pair_fields(self) -> list[Categorical]:
        """The same at every position, for the tracked drafts in the order of their index."""
        tracks = self.reading.tracks
        return [
            self._pair_field(i, np.argsort(row, kind="stable")[-tracks:]) for i, row in enumerate(self.reading.tracked)
        ]

    @cached_property
    def bonus_field(self) -> Categorical:
        """The bonus token: outcomes [V] and, last, "missing"."""
        right, gamma = self.right.bonus, self.case.gamma
        group = self.positions[gamma].groups.group

        def extend(law: FloatArray, missing: float) -> FloatArray:
            return np.append((1 - missing) * group(law), missing)[None]

        directed = []
        for fault in BONUS:
            wrong = self.wrong[fault]
            for s in SEVERITIES:
                # Of the rounds without a bonus token only those with a sure last draft are seen to lack it.
                seen = self._seen_missing(s) if wrong.drop else 0.0
                directed.append(extend(right if wrong.drop else (1 - s) * right + s * wrong.bonus, seen))
        low, up = self.box.bonus()
        allowed = 4 * self.precision.resolution
        low = np.append(np.minimum(group(low), 1.0) * (1 - allowed), 0.0)[None]
        up = np.append(np.minimum(group(up), 1.0), allowed)[None]
        null = extend(right, 0.0)
        tilts = self.tilts(null[:, :-1], [gamma], null.shape[1] - 1)
        tilts = np.concatenate([tilts, np.zeros((*tilts.shape[:-1], 1))], -1)
        return Categorical(null, low, up, np.array(directed), tilts)

    def _emitted_laws(self, i: int) -> FloatArray:
        """Laws [K, C] of the emitted token at a reached position, for every fault of `EMITTED` at every severity.

        Accepted drafts q a and the rest of the mass times the residual, each mixed on its own; sums over classes come first.
        """
        group = self.positions[i].groups.group
        wrong = [self.wrong[f] for f in EMITTED]
        if i == self.case.gamma:
            own = group(self.right.bonus)
            return _mixtures(own, np.stack([own if w.drop else group(w.bonus) for w in wrong]))
        q = self.case.q[i]
        accepted = _mixtures(group(q * self.right.accept[i]), np.stack([group(q * w.accept[i]) for w in wrong]))
        refused = np.maximum(1 - accepted.sum(-1), 0.0)
        out = np.empty_like(accepted)
        for k, w in enumerate(wrong):
            rows = slice(k * _S, (k + 1) * _S)
            if self.right.residual is not None and w.residual is not None:
                laws_at = _mixtures(group(self.right.residual[i]), group(w.residual[i])[None])
                out[rows] = refused[rows, None] * laws_at
                continue
            for j, s in enumerate(SEVERITIES):
                weights = q * np.maximum(1 - (1 - s) * self.right.accept[i] - s * w.accept[i], 0.0)
                out[k * _S + j] = group((1 - s) * self.right.mean(i, weights) + s * w.mean(i, weights))
        return accepted + out

    @cached_property
    def emitted_field(self) -> Categorical:
        """Emitted tokens at each reached position [gamma + 1]."""
        return self._emitted_at(list(range(self.case.gamma + 1)))

    @cached_property
    def first_emitted_field(self) -> Categorical:
        """Emitted tokens at the first position alone, as `sample` shows them."""
        return self._emitted_at([0])

    def joint_of_emitted(self, score: Score) -> FloatArray:
        """Log pay-offs [fault, severity] of the emitted tokens, where nothing else is shown."""
        joint = np.zeros((len(JOINT), _S))
        joint[[JOINT.index(f) for f in EMITTED]] = score.bets[: score.directed].reshape(len(EMITTED), _S)
        return joint

    def _emitted_at(self, positions: list[int]) -> Categorical:
        return self._categorical(positions, lambda i: self.case.p[i], self.box.emitted, self._emitted_laws)

    def rates(self, fault: str, severity: float) -> FloatArray:
        """Mean acceptance [gamma] at each reached position under a fault at a severity, drafts drawn from q."""
        a = (1 - severity) * self.right.accept + severity * self.wrong[fault].accept
        return np.asarray((self.case.q * a).sum(-1))

    @cached_property
    def rate_field(self) -> Bernoulli:
        """Acceptances at each reached position [gamma], whatever the draft."""
        q, gamma = self.case.q, self.case.gamma
        null = (q * self.right.accept).sum(-1)
        low, up = (q * self.box.accept_low).sum(-1), (q * self.box.accept_up).sum(-1)
        directed = np.array([self.rates(fault, s) for fault in ACCEPT for s in SEVERITIES])
        return Bernoulli(null, low, np.minimum(up, 1.0), np.clip(directed, 0, 1), self.rate_tilts(null, np.ones(gamma)))

    def rate_tilts(self, null: FloatArray, weight: FloatArray) -> FloatArray:
        """Tilted rates [T, M] around rates [M]."""
        position = np.arange(len(null), dtype=float)
        refused = np.stack([np.ones(len(null)), position == len(null) - 1])
        return tilted_rates(null, np.stack([np.ones(len(null)), position]), weight, refused)

    @cached_property
    def length_field(self) -> Categorical:
        """Rounds by their number of tokens, 1 to gamma + 1."""
        q = self.case.q

        def law(rates: FloatArray, drop: float = 0.0) -> FloatArray:
            reach = np.concatenate([[1.0], np.cumprod(rates)])
            cells = np.append(np.maximum(reach[:-1] - reach[1:], 0.0), reach[-1])
            cells[-2] += drop * cells[-1]
            cells[-1] *= 1 - drop
            return cells[None]

        low_rate, up_rate = (q * self.box.accept_low).sum(-1), np.minimum((q * self.box.accept_up).sum(-1), 1.0)
        low_reach, up_reach = (np.concatenate([[1.0], np.cumprod(r)]) for r in (low_rate, up_rate))
        low = np.append(low_reach[:-1] * (1 - up_rate), low_reach[-1])[None]
        up = np.append(up_reach[:-1] * (1 - low_rate), up_reach[-1])[None]
        null = law((q * self.right.accept).sum(-1))
        directed = np.array(
            [
                law(np.clip(self.rates(f, s), 0, 1), s if FAULTS[f].drops_bonus else 0.0)
                for f in LENGTH
                for s in SEVERITIES
            ]
        )
        order = np.arange(null.shape[1], dtype=float)
        features = Features(
            np.stack([order, order == order[-1]])[:, None, :], np.array([len(order) - 1]), np.array([0])
        )
        return Categorical(null, low, up, directed, tilted_laws(null, features))

    def support_score(self, emitted: int, outside: int) -> Score:
        """Emitted tokens outside the target's support: one event, of probability at most the resolution."""
        if not (self.case.p <= 0).any():
            return Score(np.zeros(len(OUTSIDE)), 0.0, 0, 0)
        up = np.array([self.precision.resolution])
        field = Bernoulli(np.zeros(1), np.zeros(1), up, np.zeros((0, 1)), np.array(OUTSIDE)[:, None])
        return field.score(np.array([[emitted - outside, outside]]))

    # ------------------------------------------------------------------------------------------------- acceptance

    def accept_field(self, position: IntArray, x: IntArray) -> Bernoulli:
        """Acceptance of draft x at its position, for the listed cells [n]."""
        right = self.right.accept[position, x]
        low, up = self.box.accept_low[position, x], self.box.accept_up[position, x]
        cells = [right if FAULTS[f].shares_uniform else self.wrong[f].accept[position, x] for f in ACCEPT]
        q, p = self.case.q[position, x], self.case.p[position, x]
        with np.errstate(divide="ignore"):
            log_p, log_q = np.clip(np.log(p), -70, 0), np.clip(np.log(np.maximum(q, 1e-30)), -70, 0)
        order = x / max(1, self.case.vocab - 1)
        one = np.ones(len(x))
        values = np.stack([one, np.clip(log_p - log_q, -20, 20), log_p, log_q, right, order, position.astype(float)])
        refused = np.stack([one, position == 0, position == self.case.gamma - 1, x == self.case.vocab - 1])
        return Bernoulli(right, low, up, _mixtures(right, np.stack(cells)), tilted_rates(right, values, q, refused))

    @cached_property
    def _every_cell(self) -> tuple[IntArray, IntArray, Bernoulli]:
        position, x = (a.ravel() for a in np.indices(self.case.q.shape))
        return position, x, self.accept_field(position, x)

    def _accept_score(self, tally: Tally, taken: IntArray, endings: Endings) -> Score:
        """`taken` [V]: endings with draft x that count as its rejection at the last position."""
        gamma, vocab = self.case.gamma, self.case.vocab
        if gamma * vocab <= _EVERY_CELL:
            position, x, field = self._every_cell
        else:
            position, x = np.nonzero(tally.accept.sum(-1))
            ends = np.flatnonzero(tally.repeats)
            extra = np.setdiff1d(ends, x[position == gamma - 1])
            position, x = np.append(position, np.full(len(extra), gamma - 1)), np.append(x, extra)
            field = self.accept_field(position, x)
        counts = tally.accept[position, x]
        at_end = np.where(position == gamma - 1, 1, 0)
        counts[:, 0] += at_end * taken[x]
        left = at_end * (tally.repeats - taken)[x]
        if not endings.rejections:
            counts, left = counts * (1 - at_end)[:, None], np.zeros_like(left)
        score = field.score(counts)
        later = self._later_logs(tally, endings)
        shared = [k for k, f in enumerate(ACCEPT) if FAULTS[f].shares_uniform]
        bets = score.bets.copy()
        # An ending that is taken for a missing bonus token pays min(1, bet on "rejected"): valid under either reading.
        if left.any():
            bets += dot(left, np.minimum(field.logs[..., 0], 0.0))
        for k in shared:
            bets[k * _S : (k + 1) * _S] += later
        return Score(bets, score.omnibus, score.directed, score.events)

    def _later_logs(self, tally: Tally, endings: Endings) -> FloatArray:
        """Log pay-offs [S] of bets that the uniform of the earlier positions decides the later ones too.

        Having accepted with probabilities of minimum m, a shared uniform lies in [0, m) and accepts next with min(1, a/m).
        """
        codes, counts = tally.later
        outcome, code = codes % 3, codes // 3
        x, code = code % self.case.vocab, code // self.case.vocab
        position, level = code // LEVELS, code % LEVELS
        if not endings.rejections:
            counts = np.where(position == self.case.gamma - 1, 0, counts)
        right = self.right.accept[position, x]
        shared = np.minimum(1.0, right / level_value(level))
        rates = np.stack([(1 - s) * right + s * shared for s in SEVERITIES])
        low, up = self.box.accept_low[position, x], self.box.accept_up[position, x]
        yes, no = log_bets_bernoulli(rates, low, up)
        ended = np.where(self.sure[x] & endings.missing, np.minimum(no, 0.0), no)
        return dot(counts, np.select([outcome == 1, outcome == 0], [yes, no], ended))

    # ------------------------------------------------------------------------------------------------------ scores

    def _joint(self, tally: Tally, scores: dict[str, Score]) -> FloatArray:
        """Log-likelihoods [fault, severity] of whole rounds, up to a constant that is the same for all: they name, not judge.

        A round that ends with its own last draft has the likelihood of both its readings together.
        """
        x = np.flatnonzero(tally.repeats)
        if len(x):
            none = np.zeros_like(tally.repeats)
            scores = {
                "acceptance-law": self._accept_score(replace(tally, repeats=none), none, Endings()),
                "residual-law": self._residual_score(tally, none, Endings()),
                "bonus-token": self._bonus_score(tally, 0),
            }
        joint = joint_pay(scores)
        full, last = int(tally.bonus.sum()), self.case.gamma - 1
        s = np.array(SEVERITIES)[:, None]
        right, own = self.right.accept[last, x], self._echo(self.right, x)
        for k, name in enumerate(JOINT):
            fault, wrong = FAULTS[name], self.wrong[name]
            if len(x):
                accept = (1 - s) * right + s * wrong.accept[last, x]
                echo = (1 - accept) * ((1 - s) * own + s * self._echo(wrong, x)) + accept * (s if wrong.drop else 0.0)
                joint[k] += np.log(np.maximum(echo, self.precision.resolution)) @ tally.repeats[x]
            if wrong.drop:
                joint[k] += [_times_log(full, 1 - v) - full * np.log1p(-self._seen_missing(v)) for v in SEVERITIES]
            if fault.keeps:
                eligible = int(tally.residual[:-1].sum()) - tally.kept
                joint[k] += [_times_log(tally.kept, v) + _times_log(eligible, 1 - v) for v in SEVERITIES]
                joint[k] += tally.kept * _STRUCTURE_BROKEN
        return joint

    def _echo(self, of: Laws, x: IntArray) -> FloatArray:
        """Residual probability of each draft x itself at the last position, after its rejection."""
        last = self.case.gamma - 1
        if of.residual is not None:
            return np.asarray(of.residual[last, x])
        return of.given(last, x)[np.arange(len(x)), x] if len(x) <= 64 else np.zeros(len(x))

    def _seen_missing(self, s: float) -> float:
        """Of the rounds that show all drafts: how many are seen to lack a bonus token when it is dropped at severity s."""
        last = self.case.q[-1] * self.right.accept[-1]
        visible = float(last[self.sure].sum() / max(last.sum(), 1e-300))
        return min(s * visible / (1 - s + s * visible), 1 - 1e-12) if visible > 0 else 0.0

    def _residual_score(self, tally: Tally, taken: IntArray, endings: Endings) -> Score:
        """`taken` [V]: endings with draft x that count as residual draws of x at the last position."""
        gamma = self.case.gamma
        residual, pairs = tally.residual, tally.pairs
        if not endings.rejections:
            residual, pairs = residual.copy(), pairs.copy()
            residual[-1], pairs[-1] = 0, 0
        elif taken.any():
            residual, pairs = residual.copy(), pairs.copy()
            residual[-1] += taken
            x = np.flatnonzero(taken * (self.reading.tracked[-1] >= 0))
            pairs[-1, self.reading.tracked[-1][x], x] += taken[x]
        if self.by_draft:
            parts = [f.score(pairs[i]) for i, f in enumerate(self.pair_fields)]
            total = sum(p.bets for p in parts)
            return Score(
                np.asarray(total), sum(p.omnibus for p in parts), parts[0].directed, sum(p.events for p in parts)
            )
        field = self.residual_field
        score = field.score(self._grouped(residual, list(range(gamma)), field.null.shape[1]))
        bets = score.bets.copy()
        for i, pair_field in enumerate(self.pair_fields):
            extra = dot(pairs[i], pair_field.logs)
            for k, fault in enumerate(self.pair_faults):
                at = RESIDUAL.index(fault) * _S
                bets[at : at + _S] += extra[k * _S : (k + 1) * _S]
        return Score(bets, score.omnibus, score.directed, score.events)

    def _bonus_score(self, tally: Tally, missing: int) -> Score:
        group = self.positions[self.case.gamma].groups.group
        return self.bonus_field.score(np.append(group(tally.bonus), missing)[None])

    def endings(self, tally: Tally) -> Endings:
        """How to take rounds that end with their own last draft, from a warm-up's tally."""
        certain = self.box.accept_low >= 1 - 4 * self.precision.resolution
        elsewhere = tally.echoes > 0 or bool(tally.accept[..., 0][certain].any())
        missing = bool(tally.repeats[self.sure].any())
        return Endings(missing=not elsewhere, rejections=elsewhere or not missing)

    def evidence(self, tally: Tally, endings: Endings) -> Evidence:
        """Log pay-offs of every claim's bets on the rounds of one visit."""
        gamma = self.case.gamma
        sure = np.where(self.sure, tally.repeats, 0)
        taken = (tally.repeats - sure) * endings.rejections + sure * (not endings.missing)
        missing = int(sure.sum()) if endings.missing else 0
        accept = self._accept_score(tally, taken, endings)
        residual = self._residual_score(tally, taken, endings)
        bonus = self._bonus_score(tally, missing)
        emitted = self.emitted_field
        outside = int(tally.emitted[self.case.p <= 0].sum())
        rates = tally.accept.sum(1)
        rates[-1, 0] += taken.sum()
        if not endings.rejections:
            rates[-1] = 0
        scores = {
            "acceptance-law": accept,
            "residual-law": residual,
            "bonus-token": bonus,
            "output-law": emitted.score(self._grouped(tally.emitted, list(range(gamma + 1)), emitted.null.shape[1])),
            "acceptance-rate": self.rate_field.score(rates),
            "round-length": self.length_field.score(tally.length[1:][None]),
            "support": self.support_score(int(tally.emitted.sum()), outside),
        }
        joint = self._joint(tally, scores)
        by_events = joint_pay(scores)
        aligned = np.concatenate([by_events[JOINT.index(f)] for f in ALIGNMENT])
        events = accept.events + residual.events + bonus.events
        scores["position-alignment"] = Score(aligned, 0.0, len(aligned), events)
        return Evidence(scores, joint)


def _times_log(count: float, probability: float) -> float:
    """count * log(probability), 0 for a count of 0."""
    if count == 0:
        return 0.0
    return count * float(np.log(probability)) if probability > 0 else -np.inf


def joint_pay(scores: dict[str, Score]) -> FloatArray:
    """Log pay-offs [fault, severity] of the acceptance, residual and bonus bets together."""
    joint = np.zeros((len(JOINT), _S))
    for claim, faults in (("acceptance-law", ACCEPT), ("residual-law", RESIDUAL), ("bonus-token", BONUS)):
        if claim in scores:
            score = scores[claim]
            joint[[JOINT.index(f) for f in faults]] += score.bets[: score.directed].reshape(len(faults), _S)
    return joint


def _pad(values: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    short = width - values.shape[-1]
    return values if not short else np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, short)])
