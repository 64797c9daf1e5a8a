"""Bets about generated sequences: laws that an engine with a fault would follow, and laws learned from what it did.

Every bet is on the next token, states a law R from the past alone, and pays R(y) / p(y) divided by what that can be worth
under the worst law that the tolerance allows. With |P'(y) - p(y)| <= w(y) and sum P' = sum p,

    sum P' R/p = 1 + sum (P' - p)(R/p - 1) <= 1 + sum w |R/p - 1|,

so with that divisor the mean is at most 1 for every such law, and a bet that agrees with p costs nothing. A token of p = 0 may
come with probability d, the resolution of the draws, at most; its bet pays R/d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from auditor.adapter import BoolArray, FloatArray, IntArray
from auditor.rules import FAULTS, REJECTION, DraftResidual, Rule, argmax, laws, normalise, ratio, temper
from auditor.sequences import UNKNOWN, Sequences, bonus_weight

SEVERITIES = (1.0, 0.3, 0.1, 0.03)
PHASES = ("first draft of a round", "later draft of a round", "bonus token", "round without drafts", "any place")


@dataclass(frozen=True)
class View:
    """The events of a batch, one row a token: M tokens of a vocabulary of V."""

    y: IntArray
    p: FloatArray
    bare: FloatArray
    q: FloatArray | None
    bare_q: FloatArray | None
    bonus: FloatArray
    """[M]: the probability that no draft stands at the token's place."""
    phase: IntArray
    """[M]: index into PHASES."""
    before: IntArray
    earlier: FloatArray
    """[M, V]: the law at the prefix one token shorter, p itself at the first token."""
    stale: FloatArray | None = None
    """[M, V]: the law with rejected drafts left in the cache."""
    shifted: FloatArray | None = None
    """[M, V]: the law with positions one too high after the first rejection."""


def phases(batch: Sequences) -> IntArray:
    """The phase of every token [N, T]."""
    places = batch.places
    phase = np.where(places.slot == 0, 0, 1)
    # A bonus token follows at least one kept draft; a round without drafts is a plain step.
    phase = np.where(places.drafted == 0, np.where(places.slot > 0, 2, 3), phase)
    return np.where(places.drafted == UNKNOWN, 4, phase)


def view(
    batch: Sequences, draft_length: int, stale: FloatArray | None = None, shifted: FloatArray | None = None
) -> View:
    """The live tokens of a batch in one row each."""
    live = batch.live
    earlier = np.concatenate([batch.p[:, :1], batch.p[:, :-1]], 1)
    return View(
        batch.tokens[live],
        batch.p[live],
        batch.bare[live],
        None if batch.q is None else batch.q[live],
        None if batch.bare_q is None else batch.bare_q[live],
        bonus_weight(batch, draft_length)[live],
        phases(batch)[live],
        batch.before[live],
        earlier[live],
        None if stale is None else stale[live],
        None if shifted is None else shifted[live],
    )


LawOf = Callable[[View], FloatArray | None]


@dataclass(frozen=True)
class EngineFault:
    """A way in which an engine can be wrong, as the law of the next token; None where the view cannot tell.

    `words` complete the sentence "it ..."; `explanation` is a paragraph for `audit explain`.
    """

    name: str
    words: str
    explanation: str
    law: LawOf


def emitted(p: FloatArray, q: FloatArray, rule: Rule) -> FloatArray:
    """The law [M, V] of the token emitted where a draft from q [M, V] is verified by `rule` against p [M, V]."""
    made = laws(rule, np.stack([p, p], -2), q[:, None])
    return _outcome(q, made.p[:, 0], q, made.accept[:, 0], made.rule, made.residual)


def _outcome(
    source: FloatArray, p: FloatArray, q: FloatArray, accept: FloatArray, rule: Rule, residual: FloatArray | None
) -> FloatArray:
    kept, refused = source * accept, source * (1.0 - accept)
    if residual is not None:
        return np.asarray(kept + refused.sum(-1, keepdims=True) * residual[:, 0])
    assert isinstance(rule.residual, DraftResidual)
    out = kept
    for x in range(p.shape[-1]):
        out = out + refused[:, x : x + 1] * rule.residual.given(p, q, np.full(len(p), x))
    return out


def _mixed(view: View, drafted: FloatArray, bonus: FloatArray) -> FloatArray:
    return np.asarray((1.0 - view.bonus[:, None]) * drafted + view.bonus[:, None] * bonus)


def _by_rule(rule: Rule) -> LawOf:
    def law(view: View) -> FloatArray | None:
        if view.q is None:
            return None
        made = laws(rule, np.stack([view.p, view.p], -2), view.q[:, None])
        drafted = _outcome(view.q, made.p[:, 0], view.q, made.accept[:, 0], made.rule, made.residual)
        return _mixed(view, drafted, made.bonus)

    return law


def _drafted_from(source: Callable[[View], FloatArray | None]) -> LawOf:
    """Drafts come from `source`, the verification computes with p and q."""

    def law(view: View) -> FloatArray | None:
        drawn = source(view)
        if drawn is None or view.q is None:
            return None
        residual = normalise(np.maximum(view.p - view.q, 0.0), view.p)
        kept = drawn * ratio(view.p, view.q)
        return _mixed(view, kept + (1.0 - kept.sum(-1, keepdims=True)) * residual, view.p)

    return law


_OF_ENGINES = (
    EngineFault(
        "drafts-argmax",
        "drafts by argmax and verifies as if the drafts had been sampled from q",
        "The draft is the most probable token of q, but the ratio and the residual use the whole law q. Public cases: "
        "transformers 32867, apple/ml-recurrent-drafter 6.",
        _drafted_from(lambda v: None if v.q is None else argmax(v.q)),
    ),
    EngineFault(
        "drafts-without-settings",
        "draws its drafts without the settings and verifies as if they had been drawn with them",
        "The draft model samples from its bare law while the ratio and the residual use its law under the settings: the "
        "settings reached the target's side only.",
        _drafted_from(lambda v: v.bare_q),
    ),
    EngineFault(
        "settings-ignored",
        "verifies against the target without the settings",
        "The output follows the target's bare law: the settings reached the draft at most. Public cases: vLLM 9834, "
        "TensorRT-LLM 17701.",
        lambda v: v.bare,
    ),
    EngineFault(
        "settings-on-bonus-only",
        "applies the settings to the bonus token only",
        "Verified positions follow the bare law, the token behind the last draft follows the settings. Public case: "
        "vLLM 42802.",
        lambda v: _mixed(v, v.bare, v.p),
    ),
    EngineFault(
        "settings-not-on-bonus",
        "forgets the settings on the bonus token",
        "Verified positions follow the settings, the token behind the last draft does not. Public case: vLLM 44292.",
        lambda v: _mixed(v, v.p, v.bare),
    ),
    EngineFault(
        "stale-cache",
        "leaves rejected drafts in the cache",
        "After a rejection the cache is not rolled back: later tokens attend to drafts that were never emitted. Public "
        "case of the kind: mlx-lm 1423.",
        lambda v: v.stale,
    ),
    EngineFault(
        "positions-shifted",
        "counts positions one too high after a rejection",
        "The position ids of the tokens behind a rejection do not match the sequence.",
        lambda v: v.shifted,
    ),
    EngineFault(
        "previous-logits",
        "takes each token from the law of the prefix one token shorter",
        "An index off by one in the logits of the verification pass: position i is judged by the row before it.",
        lambda v: v.earlier,
    ),
)

_PLAIN_RULES = (
    fault
    for fault in FAULTS.values()
    if not (fault.alignment or fault.keeps or fault.shares_uniform or fault.drops_bonus)
    and fault.name not in ("onehot-treatment",)
)
ENGINE_FAULTS: dict[str, EngineFault] = {
    fault.name: fault
    for fault in (
        *_OF_ENGINES,
        *(EngineFault(rule.name, rule.words, rule.explanation, _by_rule(rule)) for rule in _PLAIN_RULES),
    )
}


def _tilted(view: View, score: FloatArray, strength: float) -> FloatArray:
    weights = view.p * np.exp(strength * score)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def _toward_draft(view: View) -> FloatArray | None:
    if view.q is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.log(np.maximum(view.q, 1e-12)) - np.log(np.maximum(view.p, 1e-12))
    return np.asarray(np.clip(score, -3, 3))


def _sharper(view: View) -> FloatArray:
    return np.asarray(np.clip(np.log(np.maximum(view.p, 1e-12)), -6, 0))


def _repeats(view: View) -> FloatArray:
    return np.asarray((np.arange(view.p.shape[-1]) == view.before[:, None]).astype(np.float64))


TILTS: dict[str, tuple[Callable[[View], FloatArray | None], tuple[float, ...]]] = {
    "toward the draft's law": (_toward_draft, (0.3, 0.1, 0.03, -0.1)),
    "toward likely tokens": (_sharper, (0.3, 0.1, -0.1, -0.3)),
    "toward repeating the last token": (_repeats, (1.0, 0.3, -0.3, -1.0)),
}


@dataclass
class Learned:
    """Ratios of observed to expected counts of each token, by context, from the batches before."""

    contexts: int
    vocab: int
    context_of: Callable[[View], IntArray]
    observed: FloatArray = field(init=False)
    expected: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.observed = np.zeros((self.contexts, self.vocab))
        self.expected = np.zeros((self.contexts, self.vocab))

    def law(self, view: View, inertia: float) -> FloatArray:
        """p tilted by the learned ratios; `inertia` is how many expected counts they must outweigh."""
        ratios = (self.observed + inertia / self.vocab) / (self.expected + inertia / self.vocab)
        weights = view.p * ratios[self.context_of(view)]
        total = weights.sum(-1, keepdims=True)
        return np.where(total > 0, weights / np.where(total > 0, total, 1.0), view.p)

    def learn(self, view: View) -> None:
        """Add a batch that has been judged."""
        context = self.context_of(view)
        np.add.at(self.observed, (context, view.y), 1.0)
        np.add.at(self.expected, context, view.p)


def log_payoff(law: FloatArray, p: FloatArray, y: IntArray, tolerance: float, resolution: float) -> FloatArray:
    """log [M] of what a bet on `law` [M, V] pays for the outcomes y [M] against p [M, V]; see the module's text.

    A law that excludes the outcome is mixed with a thousandth of p beforehand by the caller, so that no bet is ever lost whole.
    """
    positive = p > 0
    base = np.where(positive, p, resolution)
    quotient = law / base
    wide = p * tolerance * np.maximum(1.0, np.abs(np.log(base))) + resolution
    divisor = 1.0 + (np.where(positive, wide, 0.0) * np.abs(quotient - 1.0)).sum(-1)
    seen = quotient[np.arange(len(y)), y]
    return np.asarray(np.log(np.maximum(seen, 1e-300)) - np.log(divisor))


@dataclass(frozen=True)
class Wager:
    """One bet: its fault and severity, or what it leans to."""

    name: str
    severity: float
    log_weight: float
    kind: str
    """"fault", "tilt" or "learned"."""


class Book:
    """All bets on the next token of a claim, and the wealth that they have made.

    Half of the weight is on the faults, a quarter on the tilts, a quarter on what is learned. `draft_lengths` are the lengths
    of a round that are tried where the engine does not report its rounds.
    """

    def __init__(self, vocab: int, tolerance: float, resolution: float, draft_lengths: tuple[int, ...]) -> None:
        self.tolerance, self.resolution = tolerance, resolution
        self.draft_lengths = draft_lengths
        groups = len(PHASES)
        self._learned = (
            Learned(groups, vocab, lambda v: v.phase),
            Learned(groups * vocab, vocab, lambda v: v.phase * vocab + v.before),
            Learned(vocab, vocab, lambda v: v.before),
        )
        self.wagers = list(self._list())
        self.log_wealth = np.zeros(len(self.wagers))
        self.events = 0
        self.logs: FloatArray = np.zeros(len(self.wagers))
        """What the last batch added to each bet."""

    def _list(self) -> Iterator[Wager]:
        faults = [(name, s) for _ in self.draft_lengths for name in ENGINE_FAULTS for s in SEVERITIES]
        for name, severity in faults:
            yield Wager(name, severity, float(np.log(0.5 / len(faults))), "fault")
        tilts = [(name, strength) for name, (_, strengths) in TILTS.items() for strength in strengths]
        for name, strength in tilts:
            yield Wager(name, strength, float(np.log(0.25 / len(tilts))), "tilt")
        inertias = (2.0, 20.0, 200.0)
        for learned in ("by place", "by place and last token", "by last token"):
            for inertia in inertias:
                yield Wager(learned, inertia, float(np.log(0.25 / (3 * len(inertias)))), "learned")

    def judge(self, views: list[View]) -> None:
        """Settle every bet on a batch, given as one view for each draft length, and learn from it."""
        first = views[0]
        if not len(first.y):
            return
        added = [self._settle(law, severity, first) for law, severity in self._laws(views)]
        self.logs = np.array(added)
        self.log_wealth += self.logs
        self.events += len(first.y)
        for learned in self._learned:
            learned.learn(first)

    def _laws(self, views: list[View]) -> Iterator[tuple[FloatArray | None, float]]:
        for view in views:
            for fault in ENGINE_FAULTS.values():
                law = fault.law(view)
                for severity in SEVERITIES:
                    yield law, severity
        first = views[0]
        for score_of, strengths in TILTS.values():
            score = score_of(first)
            for strength in strengths:
                yield (None if score is None else _tilted(first, score, strength)), 1.0
        for learned in self._learned:
            for inertia in (2.0, 20.0, 200.0):
                yield learned.law(first, inertia), 1.0

    def _settle(self, law: FloatArray | None, severity: float, view: View) -> float:
        if law is None:
            return 0.0
        share = min(severity, 0.999)
        mixed = share * law + (1.0 - share) * view.p
        return float(log_payoff(mixed, view.p, view.y, self.tolerance, self.resolution).sum())

    @property
    def evidence(self) -> float:
        """log of the wealth."""
        weighted = self.log_wealth + np.array([w.log_weight for w in self.wagers])
        top = weighted.max()
        return float(top + np.log(np.exp(weighted - top).sum()))

    def leaders(self, kind: str) -> list[tuple[Wager, float]]:
        """The bets of a kind with what they made, best first, one for each name."""
        best: dict[str, tuple[Wager, float]] = {}
        for wager, value in zip(self.wagers, self.log_wealth, strict=True):
            if wager.kind == kind and (wager.name not in best or value > best[wager.name][1]):
                best[wager.name] = (wager, float(value))
        return sorted(best.values(), key=lambda item: -item[1])


def where(view: View) -> Iterator[tuple[str, FloatArray, FloatArray, int]]:
    """For each phase with tokens: its name, the expected and the observed share of each token [V], and the count."""
    vocab = view.p.shape[-1]
    for index, name in enumerate(PHASES):
        here: BoolArray = view.phase == index
        count = int(here.sum())
        if count:
            observed = np.bincount(view.y[here], minlength=vocab) / count
            yield name, view.p[here].mean(0), observed, count


__all__ = ["ENGINE_FAULTS", "REJECTION", "Book", "EngineFault", "View", "Wager", "log_payoff", "phases", "temper", "view"]
