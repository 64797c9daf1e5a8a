"""Bets about generated sequences: laws that an engine with a fault would follow, and laws learned from what it did.

Every bet is on the next token, states a law R from the past alone, and pays R(y) / p(y) divided by what that can be worth
under the worst law that the tolerance allows. With |P'(y) - p(y)| <= w(y) and sum P' = sum p,

    sum P' R/p = 1 + sum (P' - p)(R/p - 1) <= 1 + sum w |R/p - 1|,

so with that divisor the mean is at most 1 for every such law, and a bet that agrees with p costs nothing. A token of p = 0 may
come with probability d, the resolution of the draws, at most; its bet pays R/d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from auditor.adapter import FloatArray, IntArray
from auditor.engines.sequences import UNKNOWN, Sequences, bonus_weight
from auditor.rules import FAULTS, DraftResidual, Rule, argmax, laws, normalise, ratio

SEVERITIES = (1.0, 0.3, 0.1, 0.03)
TABLED = 256
"""The largest vocabulary for which tables of pairs of tokens are kept."""
INERTIAS = (2.0, 20.0, 200.0)
"""Expected counts that a learned ratio must outweigh."""
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
        if isinstance(rule.residual, DraftResidual) and view.p.shape[-1] > TABLED:
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


def allowance(p: FloatArray, tolerance: float, resolution: float) -> FloatArray:
    """How far [M, V] the probability of a token may lie from p: relative as a log-softmax errs, plus the resolution."""
    with np.errstate(divide="ignore"):
        relative = np.maximum(1.0, np.where(p > 0, np.abs(np.log(p)), 1.0))
    return np.asarray(p * tolerance * relative + resolution)


def log_payoff(law: FloatArray, p: FloatArray, y: IntArray, wide: FloatArray) -> FloatArray:
    """log [M] of what a bet on `law` [M, V] pays for the outcomes y [M], where |P' - p| <= wide [M, V]."""
    positive = p > 0
    quotient = law / np.where(positive, p, wide)
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
    """Bets fixed before the outcomes they judge, and the wealth that they have made; its mean stays at most 1."""

    def __init__(self, wagers: list[Wager]) -> None:
        self.wagers = wagers
        self.log_wealth = np.zeros(len(wagers))
        self.events = 0
        self.logs: FloatArray = np.zeros(len(wagers))
        """What the last batch added to each bet."""

    def settle(self, laws: Iterable[FloatArray | None], p: FloatArray, y: IntArray, wide: FloatArray) -> None:
        """Settle every bet, given its law [M, V] in the order of `wagers`; None stands for a bet that is not made."""
        added = np.zeros(len(self.wagers))
        for index, law in enumerate(laws):
            if law is not None:
                # A thousandth stays on p, so that no outcome loses a bet whole.
                added[index] = log_payoff(0.999 * law + 0.001 * p, p, y, wide).sum()
        self.logs = added
        self.log_wealth += added
        self.events += len(y)

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


def wagers(faults: Sequence[str], tilts: Sequence[tuple[str, float]], learned: Sequence[str]) -> list[Wager]:
    """Half of the weight on the faults at every severity, the rest halved between tilts and learned laws."""
    directed = [(name, severity) for name in faults for severity in SEVERITIES]
    made = [Wager(n, s, float(np.log(0.5 / len(directed))), "fault") for n, s in directed]
    made += [Wager(n, s, float(np.log(0.25 / len(tilts))), "tilt") for n, s in tilts]
    slow = [(name, inertia) for name in learned for inertia in INERTIAS]
    return made + [Wager(n, s, float(np.log(0.25 / len(slow))), "learned") for n, s in slow]


def severed(law: FloatArray | None, p: FloatArray) -> Iterator[FloatArray | None]:
    """A fault's law at every severity."""
    for severity in SEVERITIES:
        yield None if law is None else severity * law + (1.0 - severity) * p


class TokenBook(Book):
    """The bets on the next token of a sequence. Each batch is judged first and learned from afterwards.

    `draft_lengths` are the lengths of a round that are tried where the engine does not report its rounds. What is learned is
    kept apart for each model; everything else adds up over models, prompts and settings.
    """

    def __init__(self, draft_lengths: tuple[int, ...]) -> None:
        tilts = [(name, strength) for name, (_, strengths) in TILTS.items() for strength in strengths]
        names = ("by place", "by place and last token", "by last token")
        super().__init__(wagers([name for _ in draft_lengths for name in ENGINE_FAULTS], tilts, names))
        self.draft_lengths = draft_lengths
        self._learned: dict[str, tuple[Learned, ...]] = {}

    def judge(self, views: list[View], model: str, tolerance: float, resolution: float) -> None:
        """Settle every bet on a batch, given as one view for each draft length, and learn from it."""
        first = views[0]
        if not len(first.y):
            self.logs = np.zeros(len(self.wagers))
            return
        vocab, groups = first.p.shape[-1], len(PHASES)
        if model not in self._learned:
            kept: list[Learned] = [Learned(groups, vocab, lambda v: v.phase)]
            if vocab <= TABLED:
                kept.append(Learned(groups * vocab, vocab, lambda v: v.phase * vocab + v.before))
                kept.append(Learned(vocab, vocab, lambda v: v.before))
            self._learned[model] = tuple(kept)
        learned = self._learned[model]
        wide = allowance(first.p, tolerance, resolution)
        self.settle(self._laws(views, learned), first.p, first.y, wide)
        for one in learned:
            one.learn(first)

    def _laws(self, views: list[View], learned: tuple[Learned, ...]) -> Iterator[FloatArray | None]:
        for view in views:
            for fault in ENGINE_FAULTS.values():
                yield from severed(fault.law(view), view.p)
        first = views[0]
        for score_of, strengths in TILTS.values():
            score = score_of(first)
            for strength in strengths:
                yield None if score is None else _tilted(first, score, strength)
        for one in learned:
            for inertia in INERTIAS:
                yield one.law(first, inertia)
