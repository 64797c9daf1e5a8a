"""Cases, and the Hypothesis strategies that generate them; for the audit and for other people's tests.

    from hypothesis import given
    from auditor.cases import cases

    @given(cases(max_vocab=20, max_gamma=3))
    def test_my_sampler(case):
        tokens = my_sampler(case.p, case.q)

A case is one input of a round: the target's laws p [gamma+1, V] and the draft's laws q [gamma, V]. Two kinds of
strategy make them. `simplices` draws every element, as round numbers that shrink to round numbers; the families
(`auditor.families`) draw a name, a few parameters and a seed, and reach every vocabulary size. Hypothesis prefers the
shorter choice sequence, so a union of the two shrinks to a family with a small seed, which is no use to a reader: a
finding is shrunk by a second search over `small_cases`, which holds explicit simplices alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from auditor.adapter import FloatArray
from auditor.families import FAMILIES, Knob, family_laws, normalise
from auditor.results import CaseData

__all__ = [
    "FAMILIES",
    "FAMILY_NAMES",
    "KL_CAP",
    "Case",
    "cases",
    "distributions",
    "explicit_cases",
    "family_case",
    "normalise",
    "pairs",
    "simplices",
    "small_cases",
]

FAMILY_NAMES = ("simplex", *FAMILIES)
KL_CAP = 50.0
"""Nats; stands for an infinite KL divergence, where q misses part of p."""

LARGE_VOCABULARIES = (1000, 32_000, 128_000)
SIMPLEX_VOCAB = 8
"""Explicit simplices have at most this many tokens: each is a choice of Hypothesis."""
LISTED = 4096
"""The largest gamma * V whose laws are written out in `CaseData`."""


@dataclass(frozen=True, eq=False, repr=False)
class Case:
    """Target p [gamma+1, V] and draft q [gamma, V]: float64, read-only, rows summing to 1; equal by content.

    `label` is how a person would call it; `family` one of `FAMILY_NAMES`, or "edge" or "corpus"; `source` says of an
    explicit case which edge or which bug it comes from. Raises ValueError where p and q are not such laws (sums are
    taken to 1e-9).
    """

    p: FloatArray
    q: FloatArray
    label: str
    family: str
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("p", "q"):
            # Adding 0 turns -0.0 into 0.0, so that equal laws have equal bytes.
            law = np.array(getattr(self, name), np.float64, order="C", ndmin=2) + 0.0
            if law.ndim != 2 or not np.isfinite(law).all() or (law < 0).any():
                raise ValueError(f"{name} must be [positions, V], finite and not negative")
            if np.abs(law.sum(1) - 1).max(initial=0) > 1e-9:
                raise ValueError(f"the rows of {name} must sum to 1")
            law.setflags(write=False)
            object.__setattr__(self, name, law)
        if self.q.shape != (len(self.p) - 1, self.p.shape[1]) or not len(self.q) or self.p.shape[1] < 2:
            raise ValueError(f"p must be [gamma+1, V] and q [gamma, V]; they are {self.p.shape} and {self.q.shape}")

    @property
    def vocab(self) -> int:
        return len(self.p[0])

    @property
    def gamma(self) -> int:
        return len(self.q)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of a hash of p and q; the label is not part of it."""
        content = hashlib.blake2b(f"{self.gamma} {self.vocab} ".encode(), digest_size=8)
        for law in (self.p, self.q):
            content.update(law.astype("<f8").tobytes())
        return content.hexdigest()

    @cached_property
    def tv(self) -> FloatArray:
        """Total variation of p and q at each position [gamma]; the acceptance rate there is 1 - tv."""
        return np.asarray(0.5 * np.abs(self.p[:-1] - self.q).sum(1))

    @cached_property
    def kl(self) -> FloatArray:
        """KL(p || q) in nats at each position [gamma], at most `KL_CAP`."""
        p, q = self.p[:-1], self.q
        with np.errstate(divide="ignore"):
            logs = np.log(np.where(p > 0, p, 1.0)) - np.log(np.where(p > 0, q, 1.0))
        return np.asarray(np.clip((p * np.minimum(logs, 1e300)).sum(1), 0.0, KL_CAP))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Case) and self.digest == other.digest

    def __hash__(self) -> int:
        return int(self.digest, 16)

    def __repr__(self) -> str:
        if self.p.size > 64:
            return f"<Case {self.label!r} {self.digest}>"
        return f"Case(p={self.p.tolist()}, q={self.q.tolist()}, label={self.label!r}, family={self.family!r})"

    def data(self) -> CaseData:
        """As JSON; p and q are left out where gamma * V exceeds 4096."""
        listed = self.gamma * self.vocab <= LISTED
        return CaseData(
            label=self.label,
            vocab=self.vocab,
            gamma=self.gamma,
            digest=self.digest,
            family=self.family,
            source=self.source,
            p=self.p.tolist() if listed else None,
            q=self.q.tolist() if listed else None,
        )

    @classmethod
    def from_data(cls, data: CaseData) -> Case:
        """The inverse of `data`. Raises ValueError where p and q were too large to be written out."""
        if data.p is None or data.q is None:
            raise ValueError(f"the laws of case {data.digest} were too large to be written out")
        return cls(np.array(data.p), np.array(data.q), data.label, data.family, data.source)


def family_case(name: str, vocab: int, gamma: int, seed: int, **knobs: Knob) -> Case:
    """A case of a parametrised family (`auditor.families.FAMILIES`), without Hypothesis; the label says it all.

    Raises KeyError for an unknown family, TypeError for an unknown knob.

    Examples
    --------
    >>> family_case("dirichlet", 12, 3, 7, concentration=0.3).label
    'dirichlet(concentration=0.3) V=12 gamma=3 seed=7'
    """
    p, q = family_laws(name, vocab, gamma, seed, knobs)
    words = ", ".join(f"{knob}={value}" for knob, value in knobs.items())
    called = f"{name}({words})" if knobs else name
    return Case(p, q, f"{called} V={vocab} gamma={gamma} seed={seed}", name)


# --------------------------------------------------------------------------------------------------- strategies


@lru_cache(maxsize=1024)
def _weight(units: int, centre: float) -> st.SearchStrategy[int]:
    """0 to `units`, shrinking towards the whole number next to `centre`."""
    return st.sampled_from(sorted(range(units + 1), key=lambda weight: (abs(weight - centre), -weight)))


def _simplex(draw: st.DrawFn, units: int, centres: Sequence[float], least: int = 0) -> FloatArray:
    """A law [V] in multiples of 1/units: weights that shrink towards `centres`, then the rest for the last token."""
    weights: list[int] = []
    for token, centre in enumerate(centres):
        left = units - sum(weights) - least * (len(centres) - token)
        # Cut to what is left instead of drawn from it: where nothing is left Hypothesis would have one choice less to
        # make, and take the one-hot law for simpler than the even one.
        weights.append(min(max(draw(_weight(units, centre)), least), left))
    return normalise([*weights, units - sum(weights)])


@st.composite
def _simplices(draw: st.DrawFn, vocab: int, units: int, zeros: bool) -> FloatArray:
    return _simplex(draw, units, [units / vocab] * (vocab - 1), 0 if zeros else 1)


def simplices(vocab: int, units: int | None = None, zeros: bool = True) -> st.SearchStrategy[FloatArray]:
    """Laws [V] in whole multiples of 1/units; they shrink towards the even law: (.5, .5), (.6, .4), (.3, .3, .4), ...

    `units` defaults to 10, or for a larger vocabulary to the smallest multiple of 10 that is at least V. With `zeros`
    false every token has mass. Raises ValueError where `units` are too few for that.
    """
    if units is None:
        units = 10 * -(-vocab // 10)
    if vocab < 1 or units < (1 if zeros else vocab):
        raise ValueError(f"{units} units are too few for {vocab} tokens")
    return _simplices(vocab, units, zeros)


@st.composite
def small_cases(draw: st.DrawFn, max_vocab: int = 4, max_gamma: int = 2) -> Case:
    """Cases of explicit simplices in tenths, for shrinking: V = 2 and gamma = 1 wherever those can show it.

    Three of four have V = 2 and gamma = 1 from the start, because a search that begins there has nothing left to shrink
    but masses. In the others, weights between the first and the last token shrink to 0, and a token without mass under
    any law is left out: V shrinks one law at a time. A V drawn beforehand could not shrink without changing all laws.
    """
    gamma, vocab = 1, 2
    if draw(st.integers(0, 3)) == 3:
        gamma, vocab = draw(st.integers(1, max_gamma)), draw(st.integers(2, max_vocab))
    units = 10
    centres = [units / 2] + [0] * (vocab - 2)
    # Position by position, so that one can be deleted as a piece.
    laws = np.stack([_simplex(draw, units, centres) for _ in range(2 * gamma + 1)])
    # The first and the last token stay, so that V is at least 2.
    used = [token in (0, vocab - 1) or bool(laws[:, token].any()) for token in range(vocab)]
    p, q = laws[0::2, used], laws[1::2, used]
    return Case(p, q, f"simplex V={p.shape[1]} gamma={gamma}", "simplex")


@st.composite
def cases(
    draw: st.DrawFn,
    min_vocab: int = 2,
    max_vocab: int = 64,
    max_gamma: int = 5,
    families: Sequence[str] | None = None,
    large_vocab: bool = False,
) -> Case:
    """Cases of every family, or of those named (`FAMILY_NAMES`).

    V is in [min_vocab, max_vocab], small values more often. With `large_vocab` the family "large-vocabulary" is among
    them: V = 1,000, 32,000 or 128,000 whatever `max_vocab` says, gamma at most 2 beyond 32,000. Raises ValueError for
    an unknown family, or where the limits leave none.
    """
    names = _families(min_vocab, families, large_vocab)
    family = draw(st.sampled_from(names))
    gamma = draw(st.integers(1, max_gamma))
    if family == "simplex":
        vocab = draw(st.integers(min_vocab, min(max_vocab, SIMPLEX_VOCAB)))
        laws = np.stack([draw(simplices(vocab)) for _ in range(2 * gamma + 1)])
        return Case(laws[0::2], laws[1::2], f"simplex V={vocab} gamma={gamma}", "simplex")
    if family == "large-vocabulary":
        vocab = draw(st.sampled_from(LARGE_VOCABULARIES))
        gamma = min(gamma, 2) if vocab > 32_000 else gamma
    else:
        most = draw(st.sampled_from((max(min_vocab, min(SIMPLEX_VOCAB, max_vocab)), max_vocab)))
        vocab = draw(st.integers(min_vocab, most))
    knobs = {knob: draw(st.sampled_from(values)) for knob, values in FAMILIES[family].knobs.items()}
    return family_case(family, vocab, gamma, draw(st.integers(0, 2**31 - 1)), **knobs)


def _families(min_vocab: int, families: Sequence[str] | None, large_vocab: bool) -> tuple[str, ...]:
    wanted = FAMILY_NAMES if families is None else tuple(families)
    for name in wanted:
        if name not in FAMILY_NAMES:
            raise ValueError(f"unknown family {name!r}; there are {', '.join(FAMILY_NAMES)}")
    left = tuple(
        name
        for name in wanted
        if (name != "large-vocabulary" or large_vocab or families is not None)
        and (name != "simplex" or min_vocab <= SIMPLEX_VOCAB)
    )
    if not left:
        raise ValueError("no family is left: simplex has at most 8 tokens")
    return left


def pairs(
    min_vocab: int = 2, max_vocab: int = 64, families: Sequence[str] | None = None, large_vocab: bool = False
) -> st.SearchStrategy[tuple[FloatArray, FloatArray]]:
    """Pairs (p [V], q [V]) of a target and a draft law; the parameters are those of `cases`."""
    return cases(min_vocab, max_vocab, 1, families, large_vocab).map(lambda case: (case.p[0], case.q[0]))


def distributions(vocab: int, families: Sequence[str] | None = None) -> st.SearchStrategy[FloatArray]:
    """Laws [V] of every family, or of those named: a target or a draft of such a case."""
    rows = st.tuples(cases(vocab, vocab, 1, families), st.booleans())
    return rows.map(lambda drawn: drawn[0].q[0] if drawn[1] else drawn[0].p[0])


# ----------------------------------------------------------------------------------------------- explicit cases


def _edge(p: npt.ArrayLike, q: npt.ArrayLike, edge: str) -> Case:
    """An explicit case; laws [V] stand for gamma = 1, the bonus token from p too."""
    p, q = np.atleast_2d(np.asarray(p, np.float64)), np.atleast_2d(np.asarray(q, np.float64))
    if len(p) == len(q):
        p = np.concatenate([p, p[-1:]])
    return Case(p, q, f"{edge}, V={p.shape[1]} gamma={len(q)}", "edge", f"edge: {edge}")


def _next_doubles(law: FloatArray) -> FloatArray:
    """Every other element one float64 up, the others one down: equal to within rounding, and not equal."""
    return np.where(np.arange(law.shape[-1]) % 2 == 0, np.nextafter(law, 2.0), np.nextafter(law, 0.0))


def explicit_cases() -> list[Case]:
    """Where samplers break: equal, disjoint and one-hot laws, zeros, tiny masses, ties, V = 2 and V = 128,000."""
    rng = np.random.default_rng(2211)
    large = LARGE_VOCABULARIES[-1]

    def draws(rows: int, vocab: int) -> FloatArray:
        return normalise(rng.standard_exponential((rows, vocab)))

    several, wide = draws(4, 8), draws(2, large)
    hot = np.eye(4)
    p3, q3 = np.array([0.6, 0.1, 0.3]), np.array([0.2, 0.5, 0.3])
    halves = np.repeat([[0.0], [1.0]], large // 2, axis=1).reshape(-1)
    last = np.eye(1, large, large - 1)
    found = [
        # equal
        _edge([0.5, 0.5], [0.5, 0.5], "p = q, even"),
        _edge([0.9, 0.1], [0.9, 0.1], "p = q, uneven"),
        _edge(several, several[:-1], "p = q, another law at each position"),
        _edge(several, _next_doubles(several[:-1]), "p = q to within float64 rounding"),
        _edge(several, normalise(several[:-1].astype(np.float32)), "q is p rounded to float32"),
        _edge(normalise(several.astype(np.float32)), several[:-1], "p is q rounded to float32"),
        _edge(several, normalise(several[:-1].astype(np.float16)), "q is p rounded to float16"),
        _edge(wide, wide[:-1], "p = q, large vocabulary"),
        # disjoint
        _edge([1.0, 0.0], [0.0, 1.0], "disjoint supports, two tokens"),
        _edge([0.5, 0.3, 0.2, 0, 0, 0], [0, 0, 0, 0.2, 0.3, 0.5], "disjoint supports, six tokens"),
        _edge(
            np.array([p3, [0, 0.4, 0.6], p3]),
            np.array([q3, [1, 0, 0]]),
            "disjoint supports at the second position only",
        ),
        _edge(
            np.array([p3, p3, [0, 0, 1], q3]), np.array([p3, [0.5, 0.2, 0.3], [1, 0, 0]]), "equal, close, then disjoint"
        ),
        # one-hot
        _edge([1.0, 0.0, 0.0], q3, "one-hot p"),
        _edge(p3, [1.0, 0.0, 0.0], "one-hot q"),
        _edge(p3, [0.0, 0.0, 1.0], "one-hot q on the last token"),
        _edge(hot[[0, 1, 2]], hot[[0, 1]], "one-hot p and q, equal"),
        _edge(hot[[0, 1, 2]], hot[[1, 2]], "one-hot p and q, distinct"),
        _edge(hot[[3, 0, 1, 2]], hot[[3, 3, 1]], "one-hot p and q, equal at some positions"),
        # zeros
        _edge([0.0, 0.6, 0.4], [0.5, 0.3, 0.2], "p = 0 where q has mass"),
        _edge([0.5, 0.3, 0.2], [0.0, 0.6, 0.4], "q = 0 where p has mass"),
        _edge([0.0, 0.5, 0.5, 0.0], [0.5, 0.0, 0.5, 0.0], "zeros in p, in q and in both"),
        # ties
        _edge([0.25] * 4, [0.25] * 4, "every mass tied, p = q"),
        _edge([0.25] * 4, [0.5, 0.5, 0, 0], "even p, q on half of the tokens"),
        _edge([0.4, 0.4, 0.1, 0.1], [0.4, 0.1, 0.4, 0.1], "ties in p and q, and p = q on two tokens"),
    ]
    for mass in (1e-8, 1e-20, 1e-30):
        small = normalise([mass, 0.6, 0.4])
        found += [
            _edge(small, q3, f"a mass of {mass:g} in p"),
            _edge(p3, small, f"a mass of {mass:g} in q"),
            _edge(small, normalise([mass, 0.4, 0.6]), f"a mass of {mass:g} in p and q"),
            _edge(normalise([1.0, mass, mass]), normalise([1.0, mass, 2 * mass]), f"all but {mass:g} on one token"),
        ]
    found += [
        # size
        _edge([0.7, 0.3], [0.4, 0.6], "two tokens"),
        _edge([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5], [0.1, 0.9], [0.6, 0.4], [0.9, 0.1]], [[0.4, 0.6]] * 5, "long draft"),
        _edge(wide, draws(1, large), "large vocabulary"),
        _edge(np.full(large, 1 / large), normalise(halves), "large vocabulary, even p, q on its second half"),
        _edge(0.5 * last + 0.5 / large, np.full((1, large), 1 / large), "large vocabulary, half on the last token"),
        _edge(last, normalise(halves), "large vocabulary, one-hot p on the last token"),
    ]
    return found
