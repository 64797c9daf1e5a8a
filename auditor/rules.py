"""What a sampler does with a draft: the correct rules, and every catalogued fault, as laws of a round's events.

A round is a chain of events. At each reached position the draft `x` is accepted with probability `accept[i, x]`; after a
rejection a token follows from the residual law of that position; after `gamma` acceptances a bonus token follows. A `Rule`
states these three laws. From the same object come the sampler of `adapters/faulty.py` (`auditor.draws`), the likelihood of a
directed bet, and the name and words of a finding, so that the three cannot disagree.

Shapes: target `p` [..., gamma+1, V], draft `q` [..., gamma, V], both float64 with rows summing to 1; leading axes are rows of a
mixed batch. A fault leaves out (None) the laws that it does not touch; `under` completes it with those of the rule that the
sampler claims to follow. At severity `s` each event independently follows the fault with probability `s`, otherwise the rule.

Sources: rejection: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), Theorem 1 and Appendix A; Chen et al. 2023
(2302.01318), Algorithm 2. One-hot: the same with q = 1 at the draft. Sample-and-match: the target's own sample is emitted, and
the draft counts as accepted when it equals it; given the draft, its events have the law of the one-hot rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LawOf = Callable[[FloatArray, FloatArray], FloatArray]
"""(p [..., gamma+1, V], q [..., gamma, V]) -> a law for each position."""


@dataclass(frozen=True)
class DraftResidual:
    """A residual law that depends on the rejected draft, one position at a time.

    given(p [..., V], q [..., V], x [...]) -> [..., V]: the law after rejecting `x`.
    mean(p [V], q [V], w [V]) -> [V]: sum_x w[x] * given(p, q, x), in closed form, without a V x V table.
    draw(p [V], q [V], x [n], u [n]) -> [n]: tokens after rejecting x, from uniforms u, without an [n, V] table.
    """

    given: Callable[[FloatArray, FloatArray, IntArray], FloatArray]
    mean: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
    draw: Callable[[FloatArray, FloatArray, IntArray, FloatArray], IntArray]


@dataclass(frozen=True)
class Rule:
    """A correct rule (every law given) or a fault (the laws that it changes given).

    `words` complete the sentence "it ..."; `explanation` is a paragraph for `audit explain`.
    """

    name: str
    words: str
    explanation: str
    accept: LawOf | None = None
    residual: LawOf | DraftResidual | None = None
    bonus: LawOf | None = None
    target: Callable[[FloatArray], FloatArray] | None = None
    """Replaces p [..., gamma+1, V] before anything else is done with it."""
    drops_bonus: bool = False
    shares_uniform: bool = False
    """One uniform decides every position of a round."""
    keeps: bool = False
    """The drafts behind a rejected one are emitted all the same."""
    alignment: bool = False
    """The fault is to use a neighbouring position's law."""

    @property
    def touches(self) -> frozenset[str]:
        """Which events the fault can change: "accept", "residual", "bonus", "structure"."""
        parts = set()
        if self.accept is not None or self.shares_uniform:
            parts.add("accept")
        if self.residual is not None:
            parts.add("residual")
        if self.bonus is not None or self.drops_bonus:
            parts.add("bonus")
        if self.target is not None:
            parts |= {"accept", "residual", "bonus"}
        if self.keeps:
            parts.add("structure")
        return frozenset(parts)


# --------------------------------------------------------------------------------------------- building blocks


def normalise(weights: FloatArray, fallback: FloatArray) -> FloatArray:
    """Rows of `weights` [..., V] divided by their sums; rows that sum to 0 are taken from `fallback`."""
    total = weights.sum(-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, weights / np.where(total > 0, total, 1.0), fallback)


def ratio(p: FloatArray, q: FloatArray) -> FloatArray:
    """min(1, p / q), and 1 where q = 0 (such a token is never drafted, and p / q has no finite value there)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(q > 0, np.minimum(1.0, p / np.where(q > 0, q, 1.0)), 1.0)


def temper(law: FloatArray, temperature: float) -> FloatArray:
    """The law at another temperature: proportional to law ** (1 / temperature)."""
    with np.errstate(divide="ignore"):
        log = np.log(law) / temperature
    log -= log.max(-1, keepdims=True)
    weights = np.exp(log)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def top_k(law: FloatArray, k: int) -> FloatArray:
    """The law cut to its `k` most probable tokens; ties at the cut go to the lower token id."""
    order = np.argsort(-law, axis=-1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(law.shape[-1]), law.shape).copy(), -1)
    return normalise(np.where(rank < k, law, 0.0), law)


def top_p(law: FloatArray, mass: float) -> FloatArray:
    """The law cut to the fewest most probable tokens whose mass reaches `mass`."""
    order = np.argsort(-law, axis=-1, kind="stable")
    ranked = np.take_along_axis(law, order, -1)
    kept = np.where(np.cumsum(ranked, -1) - ranked < mass, ranked, 0.0)
    cut = np.zeros_like(law)
    np.put_along_axis(cut, order, kept, -1)
    return normalise(cut, law)


def argmax(law: FloatArray) -> FloatArray:
    """All mass on the most probable token, the lowest id among ties."""
    point = np.zeros_like(law)
    np.put_along_axis(point, law.argmax(-1)[..., None], 1.0, -1)
    return point


def _residual(weigh: LawOf) -> LawOf:
    """A residual law from unnormalised weights of (p[i], q[i]), falling back to p[i] where they vanish."""

    def law(p: FloatArray, q: FloatArray) -> FloatArray:
        target = p[..., :-1, :]
        return normalise(weigh(target, q), target)

    return law


def _accept(of: LawOf) -> LawOf:
    """An acceptance law from (p[i], q[i])."""
    return lambda p, q: of(p[..., :-1, :], q)


def _bonus(of: Callable[[FloatArray], FloatArray]) -> LawOf:
    """A bonus law from p[gamma]."""
    return lambda p, q: of(p[..., -1, :])


def _without(p: FloatArray, q: FloatArray, x: IntArray) -> FloatArray:
    """p without the draft, normalised: max(p - 1_x, 0). The residual of the one-hot rule and of sample-and-match."""
    cut = np.array(p)
    np.put_along_axis(cut, np.asarray(x)[..., None], 0.0, -1)
    return normalise(cut, p)


def _without_mean(p: FloatArray, q: FloatArray, w: FloatArray) -> FloatArray:
    """sum_x w_x p(y) [y != x] / (1 - p(x)) = p(y) (W - v_y) with v = w / (1 - p), W = sum v.

    The likeliest token is taken on its own: where p(x) is nearly 1, 1 - p(x) and W - v_x have no correct digit. All others
    have 1 - p of at least 1/2.
    """
    likeliest = np.array([int(p.argmax())])
    v = w / np.maximum(1.0 - p, 0.5)
    v[likeliest] = 0.0
    mean: FloatArray = p * (v.sum() - v) + w[likeliest] * _without(p[None], q[None], likeliest)[0]
    return mean


def _without_draw(p: FloatArray, q: FloatArray, x: IntArray, u: FloatArray) -> IntArray:
    """Inverse CDF of p with the interval of x left out."""
    upper = np.cumsum(p)
    below = upper[x] - p[x]
    point = u * (upper[-1] - p[x])
    return _invert(upper, np.where(point >= below, point + p[x], point), p)


def _invert(upper: FloatArray, points: FloatArray, law: FloatArray) -> IntArray:
    """Tokens whose CDF interval holds each of the points; rounding at the end stays on the last token with mass."""
    last = len(law) - 1 - int(np.argmax(law[::-1] > 0))
    return np.minimum(np.searchsorted(upper, points, side="right"), last)


_SURE = 1.0 - 1e-6


def _coin(p: FloatArray, q: FloatArray) -> FloatArray:
    """The lower end [..., V] of the uniforms that reject each draft.

    0 where the draft is as good as sure: what such a coin leaves of [0, 1) has no correct digit, and nothing is lost by
    taking the whole.
    """
    a = ratio(p, q)
    return np.where(a < _SURE, a, 0.0)


def _reused(p: FloatArray, q: FloatArray, x: IntArray) -> FloatArray:
    """The uniform u that rejected `x` (u >= a(x)) is used raw to invert the residual's CDF.

    Given the rejection u is uniform on [a, 1), so y has the mass of its CDF interval inside [a, 1), over 1 - a.
    """
    a = np.take_along_axis(_coin(p, q), np.asarray(x)[..., None], -1)
    residual = normalise(np.maximum(p - q, 0.0), p)
    upper = np.minimum(np.cumsum(residual, -1), 1.0)
    upper[..., -1] = 1.0
    lower = np.concatenate([np.zeros_like(upper[..., :1]), upper[..., :-1]], -1)
    return normalise(np.maximum(upper - np.maximum(lower, a), 0.0), residual)


def _reused_mean(p: FloatArray, q: FloatArray, w: FloatArray) -> FloatArray:
    """sum_x w_x |[a_x, 1) and I_y| / (1 - a_x): differences of G(t) = sum_x v_x max(0, t - a_x) at the CDF's steps."""
    a = _coin(p, q)
    v = w / (1.0 - a)
    order = np.argsort(a, kind="stable")
    a_sorted, v_sorted = a[order], v[order]
    mass = np.concatenate([[0.0], np.cumsum(v_sorted)])
    moment = np.concatenate([[0.0], np.cumsum(v_sorted * a_sorted)])
    steps = np.minimum(np.concatenate([[0.0], np.cumsum(normalise(np.maximum(p - q, 0.0), p))]), 1.0)
    steps[-1] = 1.0
    below = np.searchsorted(a_sorted, steps, side="right")
    return np.asarray(np.maximum(np.diff(steps * mass[below] - moment[below]), 0.0))


def _reused_draw(p: FloatArray, q: FloatArray, x: IntArray, u: FloatArray) -> IntArray:
    """The rejecting uniform is a + u (1 - a); it inverts the residual's CDF as it stands."""
    a = _coin(p, q)[x]
    residual = normalise(np.maximum(p - q, 0.0), p)
    upper = np.cumsum(residual)
    upper[-1] = 1.0
    return _invert(upper, a + u * (1 - a), residual)


def _shift_target(p: FloatArray, by: int) -> FloatArray:
    """Row i replaced by row i + by, the ends repeated."""
    rows = np.clip(np.arange(p.shape[-2]) + by, 0, p.shape[-2] - 1)
    return p[..., rows, :]


def _previous_draft(q: FloatArray) -> FloatArray:
    rows = np.maximum(np.arange(q.shape[-2]) - 1, 0)
    return q[..., rows, :]


def _uniform(p: FloatArray, q: FloatArray) -> FloatArray:
    return np.full(p.shape, 1.0 / p.shape[-1])


def _softmax_residual(p: FloatArray, q: FloatArray) -> FloatArray:
    return np.asarray(np.exp(np.maximum(p - q, 0.0)))


def cut_size(vocab: int) -> int:
    """The k of the catalogued top-k fault: 50 as in most libraries, half of a vocabulary too small for that to cut."""
    return min(50, max(1, vocab // 2))


# ------------------------------------------------------------------------------------------------ correct rules

REJECTION = Rule(
    "rejection",
    "accepts x with min(1, p(x)/q(x)), then draws from max(p - q, 0), or a bonus token from p",
    "Speculative sampling as published: accept the draft x with probability min(1, p(x)/q(x)); after a rejection draw from the "
    "residual max(p - q, 0), normalised; after gamma acceptances draw one bonus token from p[gamma]. The output law is the "
    "target's, and the acceptance rate is sum min(p, q) = 1 - TV(p, q), the highest that any lossless rule reaches.",
    accept=_accept(ratio),
    residual=_residual(lambda p, q: np.maximum(p - q, 0.0)),
    bonus=_bonus(lambda p: p),
)

_WITHOUT = DraftResidual(_without, _without_mean, _without_draw)

ONEHOT = Rule(
    "onehot",
    "accepts x with p(x), then draws from p without x, or a bonus token from p",
    "The rule for a draft that was not sampled (argmax, prompt lookup): the draft's law is one-hot, so x is accepted with "
    "probability p(x) and the residual is p without x. Lossless for any way of choosing x.",
    accept=_accept(lambda p, q: np.array(p)),
    residual=_WITHOUT,
    bonus=_bonus(lambda p: p),
)

MATCH = replace(
    ONEHOT,
    name="match",
    words="emits the target's own sample, and counts the draft as accepted when it equals it",
    explanation="Sample and match: the target's own sample is emitted at every position, and the round goes on while it equals the "
    "draft. Lossless, with acceptance sum p q for a sampled draft, which is less than sum min(p, q). Given the draft, its "
    "events have the same law as the one-hot rule.",
)

RULES: dict[str, Rule] = {rule.name: rule for rule in (REJECTION, ONEHOT, MATCH)}

# ------------------------------------------------------------------------------------------------------- faults

_FAULTS = (
    # after a rejection
    Rule(
        "residual-p",
        "samples from the target p itself after a rejection",
        "Naive resampling: the token after a rejection comes from p instead of max(p - q, 0). Tokens that the draft likes come out "
        "too often; the bias is TV = sum over x of the mass that acceptance already gave away. Public case: Spec-RL 14.",
        residual=_residual(lambda p, q: np.array(p)),
    ),
    Rule(
        "residual-q",
        "samples from the draft's law q after a rejection",
        "The token after a rejection comes from q: the draft is drawn again and kept.",
        residual=_residual(lambda p, q: np.array(q)),
    ),
    Rule(
        "residual-uniform",
        "samples uniformly after a rejection",
        "The token after a rejection is uniform over the vocabulary, as when the residual is normalised away or never filled in.",
        residual=_residual(_uniform),
    ),
    Rule(
        "residual-abs",
        "samples from |p - q| after a rejection",
        "The residual keeps the negative part with its sign lost: |p - q| instead of max(p - q, 0).",
        residual=_residual(lambda p, q: np.abs(p - q)),
    ),
    Rule(
        "residual-reversed",
        "samples from max(q - p, 0) after a rejection",
        "The residual is taken the wrong way round: max(q - p, 0).",
        residual=_residual(lambda p, q: np.maximum(q - p, 0.0)),
    ),
    Rule(
        "residual-squared",
        "samples from the square of max(p - q, 0) after a rejection",
        "The residual's weights are squared before they are normalised (a weight applied twice).",
        residual=_residual(lambda p, q: np.maximum(p - q, 0.0) ** 2),
    ),
    Rule(
        "residual-softmax",
        "puts max(p - q, 0) through a softmax after a rejection",
        "The residual's weights are taken for logits: exp(max(p - q, 0)), normalised, is nearly uniform and gives mass to tokens "
        "that have none. Public case: transformers 28508.",
        residual=_residual(_softmax_residual),
    ),
    Rule(
        "residual-neighbour",
        "takes the residual's target from the next position",
        "An index off by one: after a rejection at position i the token comes from max(p[i+1] - q[i], 0).",
        residual=lambda p, q: normalise(np.maximum(p[..., 1:, :] - q, 0.0), p[..., 1:, :]),
        alignment=True,
    ),
    Rule(
        "residual-reuses-uniform",
        "uses the uniform that rejected the draft again to draw from the residual",
        "The acceptance coin u, known to be at least a(x), inverts the residual's CDF as it stands: the first tokens of the "
        "vocabulary come out too rarely. Public case: SGLang 7207.",
        residual=DraftResidual(_reused, _reused_mean, _reused_draw),
    ),
    # acceptance
    Rule(
        "accept-always",
        "accepts every draft",
        "The draft is kept whatever p says: the output follows q. Public cases: transformers 28508, vllm-ascend 13730.",
        accept=_accept(lambda p, q: np.ones_like(q)),
    ),
    Rule(
        "accept-inverse",
        "accepts with min(1, q/p)",
        "The ratio is upside down: min(1, q(x)/p(x)).",
        accept=_accept(lambda p, q: ratio(q, p)),
    ),
    Rule(
        "accept-p",
        "accepts with p(x) alone",
        "The division by q(x) is missing: x is accepted with probability p(x), then the ordinary residual follows.",
        accept=_accept(lambda p, q: np.array(p)),
    ),
    Rule(
        "accept-threshold",
        "accepts exactly when p(x)/q(x) is at least 1/2",
        "A threshold in place of a coin: the draft is kept when p(x) >= q(x)/2 and rejected otherwise.",
        accept=_accept(lambda p, q: np.where(ratio(p, q) >= 0.5, 1.0, 0.0)),
    ),
    Rule(
        "accept-draft-temperature",
        "computes the ratio with the draft's law at another temperature (2.0)",
        "The draft was sampled from q, but the ratio uses q at temperature 2: settings applied on one side only.",
        accept=_accept(lambda p, q: ratio(p, temper(q, 2.0))),
    ),
    Rule(
        "accept-lenient",
        "accepts too much, with min(1, 1.25 p/q)",
        "A factor in the ratio raises the acceptance: speed bought with bias (lenience of 0.8 in Leviathan et al. 2023, A.5).",
        accept=_accept(lambda p, q: np.where(q > 0, np.minimum(1.0, 1.25 * ratio_open(p, q)), 1.0)),
    ),
    Rule(
        "accept-strict",
        "accepts too little, with 0.8 min(1, p/q)",
        "A factor lowers the acceptance of every draft.",
        accept=_accept(lambda p, q: 0.8 * ratio(p, q)),
    ),
    Rule(
        "accept-epsilon",
        "adds an epsilon (0.01) to q in the ratio",
        "A guard against division by zero, p / (q + eps), is large enough to lower the acceptance of rare drafts.",
        accept=_accept(lambda p, q: np.minimum(1.0, p / (q + 0.01))),
    ),
    Rule(
        "accept-next-target",
        "computes the ratio with the target of the next position",
        "An index off by one in the acceptance: p[i+1](x) / q[i](x).",
        accept=lambda p, q: ratio(p[..., 1:, :], q),
        alignment=True,
    ),
    Rule(
        "accept-previous-draft",
        "computes the ratio with the draft's law of the previous position",
        "An index off by one in the acceptance: p[i](x) / q[i-1](x).",
        accept=lambda p, q: ratio(p[..., :-1, :], _previous_draft(q)),
        alignment=True,
    ),
    # bonus token
    Rule(
        "bonus-dropped",
        "emits no bonus token when every draft was accepted",
        "The round ends with the last accepted draft. The law of the text is unharmed; each full round loses one token.",
        drops_bonus=True,
    ),
    Rule(
        "bonus-greedy",
        "takes the bonus token by argmax",
        "The bonus token is the most probable token of p[gamma] instead of a draw from it.",
        bonus=_bonus(argmax),
    ),
    Rule(
        "bonus-previous",
        "draws the bonus token from the target of the previous position",
        "An index off by one: the bonus token comes from p[gamma-1].",
        bonus=lambda p, q: np.array(p[..., -2, :]),
        alignment=True,
    ),
    Rule(
        "bonus-q",
        "draws the bonus token from the draft's law of the last position",
        "The bonus token comes from q[gamma-1] instead of p[gamma].",
        bonus=lambda p, q: np.array(q[..., -1, :]),
    ),
    Rule(
        "bonus-temperature",
        "draws the bonus token at another temperature (0.7)",
        "The bonus token's settings differ from those of the verified positions. Same kind: vLLM 42802.",
        bonus=_bonus(lambda p: temper(p, 0.7)),
    ),
    # the target itself
    Rule(
        "target-temperature",
        "verifies against the target at another temperature (0.7)",
        "Everything is right but for the target's law, which is used at temperature 0.7.",
        target=lambda p: temper(p, 0.7),
    ),
    Rule(
        "target-top-k",
        "cuts the target to its top-k tokens",
        "The target's law is cut to its 50 most probable tokens (half of a small vocabulary).",
        target=lambda p: top_k(p, cut_size(p.shape[-1])),
    ),
    Rule(
        "target-top-p",
        "cuts the target to its top-p tokens (0.9)",
        "The target's law is cut to the most probable tokens that hold 0.9 of its mass.",
        target=lambda p: top_p(p, 0.9),
    ),
    Rule(
        "target-argmax",
        "always takes the target's argmax",
        "The target is used greedily although sampling was asked for. Public case: mistral.rs 2424.",
        target=argmax,
    ),
    Rule(
        "position-next",
        "uses the target of the next position throughout",
        "The target's rows are shifted by one: position i is verified and resampled with p[i+1]. Public case: TensorRT-LLM 15098.",
        target=lambda p: _shift_target(p, 1),
        alignment=True,
    ),
    Rule(
        "position-previous",
        "uses the target of the previous position throughout",
        "The target's rows are shifted by one: position i is verified and resampled with p[i-1].",
        target=lambda p: _shift_target(p, -1),
        alignment=True,
    ),
    # the round
    Rule(
        "shared-uniform",
        "decides all positions of a round with one uniform",
        "The uniform is drawn once per round: given that earlier positions accepted, it is known to be small, and later "
        "positions accept too often. The first position is right, which is what most tests look at.",
        shares_uniform=True,
    ),
    Rule(
        "keeps-after-rejection",
        "keeps the drafts behind a rejected one",
        "After a rejection and its residual token the remaining drafts are emitted all the same.",
        keeps=True,
    ),
    Rule(
        "onehot-treatment",
        "treats a sampled draft as if its law were one-hot",
        "x is accepted with p(x) and p without x follows, although x was sampled from q. The output law is the target's; the "
        "acceptance falls from sum min(p, q) to sum p q.",
        accept=ONEHOT.accept,
        residual=_WITHOUT,
    ),
)

FAULTS: dict[str, Rule] = {fault.name: fault for fault in _FAULTS}


def ratio_open(p: FloatArray, q: FloatArray) -> FloatArray:
    """p / q without the minimum, and 1 where q = 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(q > 0, p / np.where(q > 0, q, 1.0), 1.0)


def under(fault: Rule, base: Rule) -> Rule:
    """`fault` completed with the laws of the rule that the sampler claims to follow; its target is still to be applied."""
    return replace(
        fault,
        accept=fault.accept or base.accept,
        residual=fault.residual or base.residual,
        bonus=fault.bonus or base.bonus,
    )


@dataclass(frozen=True)
class Laws:
    """The laws of a round's events on one case, or on each row of a mixed batch.

    accept [..., gamma, V]; residual [..., gamma, V], or None where it depends on the draft and `given` has it;
    bonus [..., V]; drop says that the bonus token is missing; `p`, `q` are what the rule computes with.
    """

    rule: Rule
    p: FloatArray
    q: FloatArray
    accept: FloatArray
    residual: FloatArray | None
    bonus: FloatArray
    drop: bool

    def given(self, position: int, x: IntArray) -> FloatArray:
        """The residual law [n, V] after each of the rejected drafts x [n] at `position`; for laws of one case."""
        if self.residual is not None:
            return np.broadcast_to(self.residual[position], (len(x), self.residual.shape[-1]))
        assert isinstance(self.rule.residual, DraftResidual)
        shape = (len(x), self.p.shape[-1])
        p, q = np.broadcast_to(self.p[position], shape), np.broadcast_to(self.q[position], shape)
        return self.rule.residual.given(p, q, x)

    def mean(self, position: int, weights: FloatArray) -> FloatArray:
        """sum_x weights[x] * (residual law after rejecting x) [V], at `position`; for laws of one case."""
        if self.residual is not None:
            return np.asarray(weights.sum() * self.residual[position])
        assert isinstance(self.rule.residual, DraftResidual)
        return self.rule.residual.mean(self.p[position], self.q[position], weights)


def laws(rule: Rule, p: FloatArray, q: FloatArray, base: Rule = REJECTION) -> Laws:
    """The laws of `rule` on p [..., gamma+1, V] and q [..., gamma, V]; a fault is completed from `base`.

    Examples
    --------
    >>> import numpy as np
    >>> p, q = np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([[0.8, 0.2]])
    >>> laws(REJECTION, p, q).accept
    array([[0.625, 1.   ]])
    >>> laws(FAULTS["residual-p"], p, q).residual
    array([[0.5, 0.5]])
    """
    whole = under(rule, base)
    assert whole.accept is not None
    assert whole.residual is not None
    assert whole.bonus is not None
    if whole.target is not None:
        p = whole.target(p)
    residual = None if isinstance(whole.residual, DraftResidual) else whole.residual(p, q)
    return Laws(whole, p, q, whole.accept(p, q), residual, whole.bonus(p, q), whole.drops_bonus)
