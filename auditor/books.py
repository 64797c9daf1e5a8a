"""All bets of the audit on one case: from the tally of a visit to log pay-offs, claim by claim.

The bets of a claim are the same on every case (`BETS` lists them by name), so that their products over cases are sums of these
log pay-offs. They depend on the case alone, never on what was drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from auditor.boxes import Boxes, Precision, boxes
from auditor.cases import Case
from auditor.evidence import dot, log_bets_bernoulli
from auditor.fields import (
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
from auditor.rules import FAULTS, DraftResidual, Laws, Rule, laws
from auditor.tally import LEVELS, Endings, Reading, Tally, level_of, level_value

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


def _by_severity(null: FloatArray, wrong: list[FloatArray]) -> FloatArray:
    """Mixtures (1 - s) null + s wrong for each fault and severity: [K * S, *shape]."""
    return np.array([(1 - s) * null + s * w for w in wrong for s in SEVERITIES]).reshape(-1, *null.shape)


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
        return self.box.accept_low[-1] >= 1 - 4 * self.precision.resolution

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
        wrong_of: Callable[[str, int], list[FloatArray]],
        faults: tuple[str, ...],
    ) -> Categorical:
        """Independent laws at `positions`; `wrong_of(fault, position)` gives one law [V] per severity."""
        width = max(self.positions[i].groups.size for i in positions)
        null, low, up, wrong = [], [], [], []
        for i in positions:
            group = self.positions[i].groups.group
            a, b = box_of(i)
            null.append(_pad(group(null_of(i)), width))
            low.append(_pad(np.minimum(group(a), 1.0), width))
            up.append(_pad(np.minimum(group(b), 1.0), width))
            wrong.append([_pad(group(law), width) for fault in faults for law in wrong_of(fault, i)])
        base = np.stack(null)
        directed = np.array(wrong).reshape(len(positions), len(faults) * _S, width).transpose(1, 0, 2)
        return Categorical(base, np.stack(low), np.stack(up), directed, self.tilts(base, positions, width))

    def _grouped(self, counts: IntArray, positions: list[int], width: int) -> IntArray:
        return np.stack([_pad(self.positions[i].groups.group(counts[k]), width) for k, i in enumerate(positions)])

    # ---------------------------------------------------------------------------------------------------- fields

    @cached_property
    def residual_field(self) -> Categorical:
        """Residual draws [gamma] under a rule whose residual does not depend on the draft."""
        right = self.right.residual
        assert right is not None

        def wrong_of(fault: str, i: int) -> list[FloatArray]:
            law = self.wrong[fault].residual
            # A residual that depends on the draft is bet on draft by draft (`pair_field`), not here.
            return [right[i]] * _S if law is None else [(1 - s) * right[i] + s * law[i] for s in SEVERITIES]

        return self._categorical(list(range(self.case.gamma)), lambda i: right[i], self.box.residual, wrong_of, RESIDUAL)

    @cached_property
    def pair_faults(self) -> tuple[str, ...]:
        """Faults whose residual draws are bet on draft by draft."""
        if self.by_draft:
            return RESIDUAL
        return tuple(name for name in RESIDUAL if self.wrong[name].residual is None)

    def pair_logs(self, i: int, x: IntArray) -> tuple[FloatArray, FloatArray, FloatArray, Categorical]:
        """Laws of the residual draw at `position` after each of the drafts x: their field over (draft, token)."""
        right = self.right.given(i, x)
        if self.by_draft:
            bounds = [self.box.residual_after(i, int(d)) for d in x]
            low, up = np.stack([b[0] for b in bounds]), np.stack([b[1] for b in bounds])
        else:
            one = self.box.residual(i)
            low, up = (np.broadcast_to(side, right.shape) for side in one)
        directed = _by_severity(right, [self.wrong[name].given(i, x) for name in self.pair_faults])
        tilted = np.zeros((0, *right.shape))
        if self.by_draft:
            at = self.positions[i]
            h = np.broadcast_to(at.features[:, None, :], (len(at.features), *right.shape)) if at.groups.of is None else None
            if h is not None:
                tilted = tilted_laws(right, Features(h, np.full(len(x), at.never), np.full(len(x), at.always)))
            else:
                tilted = np.broadcast_to(right, (tilts_per(TOKEN_FEATURES), *right.shape))
        return right, low, up, Categorical(right, low, up, directed, tilted)

    @cached_property
    def _pair_fields(self) -> list[tuple[IntArray, Categorical]]:
        out = []
        for i in range(self.case.gamma):
            track = self.reading.tracked[i]
            x = np.argsort(track, kind="stable")[-self.reading.tracks :]
            out.append((x, self.pair_logs(i, x)[3]))
        return out

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

    def emitted_law(self, fault: str | None, i: int, severity: float = 0.0) -> FloatArray:
        """Law [V] of the emitted token at a reached position, under a fault at a severity."""
        wrong = self.right if fault is None else self.wrong[fault]
        s = severity
        if i == self.case.gamma:
            return self.right.bonus if wrong.drop else (1 - s) * self.right.bonus + s * wrong.bonus
        q = self.case.q[i]
        accept = (1 - s) * self.right.accept[i] + s * wrong.accept[i]
        refused = q * (1 - accept)
        return q * accept + (1 - s) * self.right.mean(i, refused) + s * wrong.mean(i, refused)

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
        return self._categorical(
            positions,
            lambda i: self.case.p[i],
            self.box.emitted,
            lambda fault, i: [self.emitted_law(fault, i, s) for s in SEVERITIES],
            EMITTED,
        )

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
            cells = np.append(reach[:-1] - reach[1:], reach[-1])
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
        features = Features(np.stack([order, order == order[-1]])[:, None, :], np.array([len(order) - 1]), np.array([0]))
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
        return Bernoulli(right, low, up, _by_severity(right, cells), tilted_rates(right, values, q, refused))

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

    def _joint(self, tally: Tally) -> FloatArray:
        """Log-likelihoods [fault, severity] of whole rounds, up to a constant that is the same for all: they name, not judge.

        A round that ends with its own last draft has the likelihood of both its readings together.
        """
        none = np.zeros_like(tally.repeats)
        joint = joint_pay(
            {
                "acceptance-law": self._accept_score(replace(tally, repeats=none), none, Endings()),
                "residual-law": self._residual_score(tally, none, Endings()),
                "bonus-token": self._bonus_score(tally, 0),
            }
        )
        x = np.flatnonzero(tally.repeats)
        full, last = int(tally.bonus.sum()), self.case.gamma - 1
        eligible = int(tally.residual[:-1].sum())
        right, own = self.right.accept[last, x], self._echo(self.right, x)
        for k, name in enumerate(JOINT):
            fault, wrong = FAULTS[name], self.wrong[name]
            for j, s in enumerate(SEVERITIES):
                drop = s if wrong.drop else 0.0
                accept = (1 - s) * right + s * wrong.accept[last, x]
                echo = (1 - accept) * ((1 - s) * own + s * self._echo(wrong, x)) + accept * drop
                joint[k, j] += tally.repeats[x] @ np.log(np.maximum(echo, self.precision.resolution))
                if wrong.drop:
                    joint[k, j] += _times_log(full, 1 - drop) - full * np.log1p(-self._seen_missing(s))
                if fault.keeps:
                    joint[k, j] += tally.kept * _STRUCTURE_BROKEN
                    joint[k, j] += _times_log(tally.kept, s) + _times_log(eligible - tally.kept, 1 - s)
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
            parts = [f.score(pairs[i]) for i, (_, f) in enumerate(self._pair_fields)]
            total = sum(p.bets for p in parts)
            return Score(np.asarray(total), sum(p.omnibus for p in parts), parts[0].directed, sum(p.events for p in parts))
        field = self.residual_field
        score = field.score(self._grouped(residual, list(range(gamma)), field.null.shape[1]))
        bets = score.bets.copy()
        for i, (_, pair_field) in enumerate(self._pair_fields):
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
            "output-law": emitted.score(
                self._grouped(tally.emitted, list(range(gamma + 1)), emitted.null.shape[1])
            ),
            "acceptance-rate": self.rate_field.score(rates),
            "round-length": self.length_field.score(tally.length[1:][None]),
            "support": self.support_score(int(tally.emitted.sum()), outside),
        }
        joint = self._joint(tally)
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


def _pad(values: npt.NDArray[np.generic], width: int) -> npt.NDArray[np.generic]:
    short = width - values.shape[-1]
    return values if not short else np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, short)])
