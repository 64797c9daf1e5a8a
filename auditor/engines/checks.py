"""What a generation contradicts without any chance: its end, its counters, its log-probabilities, its greedy tokens.

Each check returns `Breach`es: one sighting decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from auditor.adapter import Generation
from auditor.engines.sequences import Sequences
from auditor.settings import ending, gain

MARGIN = 1e-3
"""Two log-probabilities closer than this times the settings' gain are a tie: greedy may take either."""


@dataclass(frozen=True)
class Breach:
    """One contradiction: the claim, a stable name of its kind, the words of a finding, and the sequence."""

    claim: str
    kind: str
    words: str
    row: int


def ends(generations: Sequence[Generation], batch: Sequences, claim: str) -> Iterator[Breach]:
    """Tokens behind the end of a sequence, or a sequence that stops before anything ends it."""
    settings, cap = batch.settings, batch.cap
    for row, generation in enumerate(generations):
        tokens = generation.tokens
        length, reason = ending(tokens, settings, cap)
        shown = tokens.tolist()
        if len(tokens) > cap and reason in ("length", ""):
            words = f"emits {len(tokens)} tokens where the cap is {cap}: {shown}"
            yield Breach(claim, "beyond-cap", words, row)
        elif len(tokens) > length:
            what = f"EOS {settings.eos}" if reason == "eos" else f"the stop sequence {_stops(settings.stop)}"
            words = f"emits {len(tokens) - length} tokens after {what}: {shown}"
            yield Breach(claim, "after-eos" if reason == "eos" else "after-stop", words, row)
        elif reason == "":
            yield Breach(claim, "stops-early", f"stops after {len(tokens)} of {cap} tokens: {shown}", row)


def _stops(stops: tuple[tuple[int, ...], ...]) -> str:
    return " or ".join(str(list(stop)) for stop in stops)


def counters(generations: Sequence[Generation]) -> Iterator[Breach]:
    """Counts of a round that contradict the tokens.

    Round k emits accepted[k] drafts and one token more. The last round may end with an accepted draft, where that draft
    ends the sequence.
    """
    for row, generation in enumerate(generations):
        drafted, accepted = generation.drafted, generation.accepted
        if drafted is None or accepted is None:
            continue
        counts = f"drafted {drafted.tolist()}, accepted {accepted.tolist()}, {len(generation.tokens)} tokens"
        if (accepted < 0).any() or (accepted > drafted).any():
            yield Breach("counters", "more-than-drafted", f"counts more accepted than drafted: {counts}", row)
            continue
        total, length = int((accepted + 1).sum()), len(generation.tokens)
        if total == length or (len(accepted) and accepted[-1] > 0 and total == length + 1):
            yield from _shown(generation, row)
        elif int((accepted + ((accepted < drafted) | (drafted == 0))).sum()) == length:
            words = f"emits no bonus token when every draft is accepted: {counts}"
            yield Breach("counters", "bonus-dropped", words, row)
        elif total > length:
            yield Breach("counters", "past-the-end", f"counts drafts that it did not emit: {counts}", row)
        else:
            yield Breach("counters", "uncounted", f"emits tokens that its counts do not account for: {counts}", row)


def _shown(generation: Generation, row: int) -> Iterator[Breach]:
    """Accepted drafts, where drafts are shown, are the emitted tokens."""
    if generation.drafts is None or generation.accepted is None:
        return
    at = 0
    for k, kept in enumerate(generation.accepted):
        emitted = generation.tokens[at : at + int(kept)].tolist()
        offered = generation.drafts[k][: len(emitted)].tolist()
        if emitted != offered:
            words = f"counts {int(kept)} accepted of the drafts {offered} and emits {emitted}"
            yield Breach("counters", "not-the-drafts", words, row)
            return
        at += int(kept) + 1


def logprobs(generations: Sequence[Generation], batch: Sequences, tolerance: float) -> Iterator[Breach]:
    """Returned log-probabilities that are not the target's own, before settings."""
    for row, generation in enumerate(generations):
        if generation.logprobs is None:
            continue
        count = min(len(generation.logprobs), int(batch.lengths[row]))
        law = batch.bare[row, np.arange(count), batch.tokens[row, :count]]
        expected = np.log(np.maximum(law, 1e-300))
        error = np.abs(generation.logprobs[:count] - expected)
        wrong = error > 10 * tolerance * np.maximum(1.0, np.abs(expected))
        if wrong.any():
            t = int(np.argmax(wrong))
            words = (
                f"returns the log-probability {generation.logprobs[t]:.4f} for token {int(batch.tokens[row, t])} "
                f"at place {t}; the target's is {expected[t]:.4f}"
            )
            yield Breach("logprobs", "wrong-logprob", words, row)


def greedy(generations: Sequence[Generation], batch: Sequences) -> Iterator[Breach]:
    """Tokens that are not the most probable one, ties within the arithmetic aside."""
    with np.errstate(divide="ignore"):
        logs = np.log(batch.p)
    margin = MARGIN * gain(batch.settings)
    for row in range(len(generations)):
        for t in range(int(batch.lengths[row])):
            y = int(batch.tokens[row, t])
            best = int(batch.p[row, t].argmax())
            if batch.live[row, t] and logs[row, t, best] - logs[row, t, y] > margin:
                before = batch.tokens[row, :t].tolist()
                words = (
                    f"takes token {y} (probability {batch.p[row, t, y]:.3f}) after {before} where the most probable "
                    f"is {best} ({batch.p[row, t, best]:.3f})"
                )
                yield Breach("greedy", "not-the-argmax", words, row)
                break
