"""Bets about drafts and what became of them, for engines that show their rounds.

Three promises: drafts follow the law that is reported for them; a draft is kept with the rule's probability; and whether it is
kept shares no randomness with how it was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from auditor.adapter import BoolArray, FloatArray, Generation, IntArray
from auditor.engines.sequences import Sequences
from auditor.engines.wagers import (
    INERTIAS,
    SEVERITIES,
    TABLED,
    Book,
    Learned,
    View,
    Wager,
    allowance,
    severed,
    wagers,
)
from auditor.rules import FAULTS, RULES, argmax, laws, ratio, temper
from auditor.settings import ENDINGS, changed

FAULTY_DRAFTS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "argmax": argmax,
    "colder": lambda law: temper(law, 0.7),
    "hotter": lambda law: temper(law, 1.5),
    "uniform": lambda law: np.full_like(law, 1.0 / law.shape[-1]),
}
"""How drafts may depart from the law [M, V] that is reported for them."""


@dataclass(frozen=True)
class Drawn:
    """Drafts and the laws that are reported for them: M drafts, in the order in which they were drawn."""

    x: IntArray
    law: FloatArray
    slot: IntArray
    before: IntArray


def drawn(batch: Sequences, generations: Sequence[Generation]) -> Drawn | None:
    """Every draft with a reported law, reached by the verification or not; None where the engine does not show them."""
    x: list[int] = []
    law: list[FloatArray] = []
    slot: list[int] = []
    before: list[int] = []
    for row, generation in enumerate(generations):
        if generation.drafts is None or generation.draft_probs is None or generation.accepted is None:
            return None
        at = 0
        for k, kept in enumerate(generation.accepted):
            last = int(batch.before[row, at]) if at < batch.tokens.shape[1] else 0
            for j, token in enumerate(generation.drafts[k]):
                if token < 0:
                    break
                # Where no law is stated (zeros) there is nothing that the draft could break.
                if generation.draft_probs[k, j].sum() > 0.5:
                    x.append(int(token))
                    law.append(generation.draft_probs[k, j])
                    slot.append(min(j, 1))
                    before.append(last)
                last = int(token)
            at += int(kept) + 1
    if not x:
        return None
    return Drawn(np.array(x), np.array(law), np.array(slot), np.array(before))


class DraftBook(Book):
    """Bets that drafts do not follow the law that is reported for them."""

    def __init__(self) -> None:
        super().__init__(wagers(tuple(FAULTY_DRAFTS), [("toward likely tokens", s) for s in _STRENGTHS], _LEARNED))
        self._learned: dict[str, tuple[Learned, ...]] = {}

    def judge(self, events: Drawn, model: str, tolerance: float, resolution: float) -> None:
        """Settle every bet on a batch of drafts, and learn from it."""
        view = drafts_view(events)
        vocab = view.p.shape[-1]
        if model not in self._learned:
            kept = [Learned(2, vocab, lambda v: v.phase)]
            if vocab <= TABLED:
                kept.append(Learned(2 * vocab, vocab, lambda v: v.phase * vocab + v.before))
            self._learned[model] = tuple(kept)
        learned = self._learned[model]
        self.settle(self._laws(view, learned), view.p, view.y, allowance(view.p, tolerance, resolution))
        for one in learned:
            one.learn(view)

    def _laws(self, view: View, learned: tuple[Learned, ...]) -> Iterator[FloatArray | None]:
        for fault in FAULTY_DRAFTS.values():
            yield from severed(fault(view.p), view.p)
        for strength in _STRENGTHS:
            yield temper(view.p, 1.0 / (1.0 + strength))
        for one in learned:
            for inertia in INERTIAS:
                yield one.law(view, inertia)


_STRENGTHS = (0.3, 0.1, -0.1, -0.3)
_LEARNED = ("by place", "by place and last token")


def drafts_view(events: Drawn) -> View:
    """Drafts as the outcomes of a view, their reported law in place of the target's."""
    nothing = np.zeros(len(events.x))
    return View(events.x, events.law, events.law, None, None, nothing, events.slot, events.before, events.law)


@dataclass(frozen=True)
class Judged:
    """Reached drafts and whether they were kept: M events.

    rate [M] is the rule's probability, wide [M] how far the engine's may lie from it. p, q [M, V] are the laws at the place;
    `x` the draft where it is shown, else the emitted token (and `rate` is then given that token).
    """

    kept: BoolArray
    rate: FloatArray
    wide: FloatArray
    p: FloatArray
    q: FloatArray
    x: IntArray
    shown: bool


def judged(batch: Sequences, rule: str, said: FloatArray | None, tolerance: float, resolution: float) -> Judged | None:
    """The acceptance events of a batch; `said` [N, T, V] is the law reported for the draft of each place.

    A draft that would end the sequence is left out, because engines differ in how they count it. Where drafts are not shown
    the event is conditional on the emitted token, and needs the draft model's own law, without settings.
    """
    places = batch.places
    reached = batch.live & (places.drafted == 1)
    if bool((places.draft[reached] >= 0).all()):
        x = np.maximum(places.draft, 0)
        reached &= np.arange(batch.tokens.shape[1]) < batch.cap - 1
        ends = [stop[-1] for stop in batch.settings.stop]
        if batch.settings.eos is not None:
            ends.append(batch.settings.eos)
        reached &= ~np.isin(x, ends)
        q = said if rule == "rejection" else batch.p
        if q is None or not reached.any():
            return None
        q = np.where((q.sum(-1) > 0.5)[..., None], q, batch.p)
        if rule == "rejection" and said is not None:
            reached &= said.sum(-1) > 0.5
        p_x, q_x = _at(batch.p, x)[reached], _at(q, x)[reached]
        rate = ratio(p_x, q_x) if rule == "rejection" else p_x
        shown = True
    else:
        if batch.q is None or rule != "rejection" or set(changed(batch.settings)) - set(ENDINGS):
            return None
        x, q = batch.tokens, batch.q
        reached &= np.arange(batch.tokens.shape[1]) < batch.lengths[:, None] - 1
        p_x, q_x = _at(batch.p, x)[reached], _at(q, x)[reached]
        rate = ratio(q_x, p_x)
        shown = False
    if not len(rate):
        return None
    logs = np.maximum(1.0, np.abs(np.log(np.maximum(p_x, 1e-300)))) + np.abs(np.log(np.maximum(q_x, 1e-300)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        open_ratio = np.where(q_x > 0, p_x / np.where(q_x > 0, q_x, 1.0), 1.0)
    # A ratio just above 1 may come out just below it.
    wide = np.where(open_ratio < 1.0 + 4 * tolerance * logs, tolerance * logs, 0.0) + resolution
    return Judged(places.accepted[reached] == 1, rate, wide, batch.p[reached], q[reached], x[reached], shown)


def _at(law: FloatArray, x: IntArray) -> FloatArray:
    return np.asarray(np.take_along_axis(law, x[..., None], -1)[..., 0])


_ACCEPTING = tuple(
    fault.name
    for fault in FAULTS.values()
    if fault.accept is not None and not (fault.alignment or fault.shares_uniform)
)


def _pair(rate: FloatArray) -> FloatArray:
    """[M] -> [M, 2]: the law of (rejected, accepted)."""
    return np.stack([1.0 - rate, rate], -1)


class AcceptBook(Book):
    """Bets that drafts are not kept with the rule's probability."""

    def __init__(self, vocab: int) -> None:
        strengths = (0.5, 0.2, 0.05, -0.05, -0.2, -0.5)
        super().__init__(wagers(_ACCEPTING, [("accepts more", s) for s in strengths], ("by draft", "by rate")))
        self._strengths = strengths
        self._sums = {name: np.zeros((2, size)) for name, size in (("by draft", vocab), ("by rate", 11))}

    def judge(self, events: Judged, rule: str) -> None:
        """Settle every bet on a batch, and learn from it."""
        p = _pair(events.rate)
        wide = np.repeat(events.wide[:, None], 2, 1)
        self.settle(self._laws(events, rule), p, events.kept.astype(np.int64), wide)
        for name, group in self._groups(events):
            np.add.at(self._sums[name][0], group, events.kept.astype(np.float64))
            np.add.at(self._sums[name][1], group, events.rate)

    def _groups(self, events: Judged) -> tuple[tuple[str, IntArray], ...]:
        # Beyond the size of the table tokens share a row, which costs power and nothing else.
        return ("by draft", events.x % self._sums["by draft"].shape[1]), (
            "by rate",
            np.floor(events.rate * 10).astype(np.int64),
        )

    def _laws(self, events: Judged, rule: str) -> Iterator[FloatArray | None]:
        base = _pair(events.rate)
        stacked, drafts = np.stack([events.p, events.p], -2), events.q[:, None]
        for name in _ACCEPTING:
            law = None
            if events.shown:
                accept = laws(FAULTS[name], stacked, drafts, RULES[rule]).accept[:, 0]
                law = _pair(_at(accept, events.x))
            yield from severed(law, base)
        for strength in self._strengths:
            odds = events.rate * np.exp(strength)
            yield _pair(odds / (odds + 1.0 - events.rate))
        for name, group in self._groups(events):
            seen, expected = self._sums[name]
            for inertia in INERTIAS:
                factor = (seen + inertia) / (expected + inertia)
                yield _pair(np.minimum(1.0, events.rate * factor[group]))


class SharedBook(Book):
    """Bets that the uniform which drew a draft, by inverting q's CDF, also decides whether it is kept.

    Given the draft the uniform lies in the draft's CDF interval [c, c + q(x)), so `u < a` has the probability
    (a - c) / q(x), clipped; or with 1 - u in place of u.
    """

    def __init__(self) -> None:
        names = [(side, s) for side in ("same uniform", "its complement") for s in SEVERITIES]
        super().__init__([Wager(n, s, float(-np.log(len(names))), "fault") for n, s in names])

    def judge(self, events: Judged) -> None:
        """Settle every bet on a batch."""
        upper = _at(np.cumsum(events.q, -1), events.x)
        width = np.maximum(_at(events.q, events.x), 1e-12)
        same = np.clip((events.rate - (upper - width)) / width, 0.0, 1.0)
        complement = np.clip((upper - (1.0 - events.rate)) / width, 0.0, 1.0)
        base = _pair(events.rate)
        bets = (mixed for rate in (same, complement) for mixed in severed(_pair(rate), base))
        self.settle(bets, base, events.kept.astype(np.int64), np.repeat(events.wide[:, None], 2, 1))
