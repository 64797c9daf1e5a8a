"""Reading rounds: from emitted tokens to counts of the round's own events.

Whether a draft was accepted is read from the round's length, not from equality: at each reached position the draft was
accepted when the token equals it and another token follows; otherwise the token there is the round's last and came from
the residual. One reading is ambiguous: a round that ends with its own last draft (`gamma` tokens, all equal to the drafts) is a
rejection that emitted the draft, or a full acceptance whose bonus token is missing. Such rounds are counted apart, and
`Endings` says how an audit takes them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.cases import Case

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LEVELS = 128
"""Levels of the running minimum of acceptance probabilities, for events of positions that share a uniform."""


@dataclass(frozen=True)
class Reading:
    """What a tally needs to know of a case, fixed before the rounds.

    tracked [gamma, V]: index of each draft whose residual draws are counted draft by draft, -1 for the others; `tracks` is
    the number of indices. level [gamma, V]: level of each draft's acceptance probability (see `level_of`).
    """

    vocab: int
    gamma: int
    tracked: IntArray
    tracks: int
    level: IntArray


def level_of(probability: FloatArray) -> IntArray:
    """The level of an acceptance probability: 0 for 1, then logarithmic steps down to 1e-3, rounded towards 1.

    A level stands for a probability that is no smaller than its own, so that a bet on a shared uniform never calls an event
    impossible that is not.
    """
    steps = np.floor(-np.log(np.maximum(probability, 1e-3)) / np.log(1e3) * (LEVELS - 1) + 1e-9)
    return np.asarray(np.clip(steps, 0, LEVELS - 1).astype(np.int64))


def level_value(level: IntArray) -> FloatArray:
    """The probability that stands for a level."""
    return np.asarray(np.exp(-level / (LEVELS - 1) * np.log(1e3)))


@dataclass(frozen=True)
class Endings:
    """How rounds that end with their own last draft are taken; fixed by a warm-up whose rounds feed no evidence.

    missing: such a round with a draft that cannot be rejected lacks its bonus token. rejections: with any other draft it is
    a rejection that emitted the draft. Where the warm-up saw sure drafts rejected, or the draft emitted by a rejection at an
    earlier position, all such rounds are rejections. Where it saw bonus tokens missing and neither of these, nothing is bet on
    the acceptance and the residual of the last position. Not to bet is always valid.
    """

    missing: bool = True
    rejections: bool = True


@dataclass(frozen=True)
class Tally:
    """Counts of a visit's events.

    accept [gamma, V, 2]: drafts x rejected and accepted at each reached position, the ambiguous last ones left out.
    repeats [V]: rounds that end with their own last draft x. residual [gamma, V]: tokens after a rejection, those repeats left
    out; pairs [gamma, tracks, V]: the same by tracked draft. bonus [V]; emitted [gamma+1, V]: tokens at each reached position.
    length [gamma+2]: rounds by number of tokens. later: (code, count) of acceptance events behind the first position, code =
    ((position * LEVELS + level of the smallest acceptance probability so far) * V + x) * 3 + (0 rejected, 1 accepted, 2 an
    ambiguous ending).
    echoes: rejections before the last position that emitted the draft itself.
    broken: rounds whose accepted tokens are no prefix of the drafts; kept: those among them that go on with the drafts.
    """

    rounds: int
    accept: IntArray
    repeats: IntArray
    residual: IntArray
    pairs: IntArray
    bonus: IntArray
    emitted: IntArray
    length: IntArray
    later: tuple[IntArray, IntArray]
    echoes: int
    broken: int
    kept: int

    def __add__(self, other: Tally) -> Tally:
        merged: dict[str, Any] = {}
        for f in fields(self):
            a, b = getattr(self, f.name), getattr(other, f.name)
            merged[f.name] = _merge(a, b) if f.name == "later" else a + b
        return Tally(**merged)


def _merge(a: tuple[IntArray, IntArray], b: tuple[IntArray, IntArray]) -> tuple[IntArray, IntArray]:
    codes, where = np.unique(np.concatenate([a[0], b[0]]), return_inverse=True)
    counts = np.bincount(where, np.concatenate([a[1], b[1]]), len(codes))
    return codes, counts.astype(np.int64)


def _histogram(codes: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """Distinct codes in [0, size) and their counts."""
    if size <= max(2**16, 4 * len(codes)):
        counts = np.bincount(codes, minlength=size)
        seen = np.flatnonzero(counts)
        return seen, counts[seen]
    return np.unique(codes, return_counts=True)


def read_rounds(reading: Reading, drafts: IntArray, tokens: IntArray) -> Tally:
    """Count the events of rounds: drafts [B, gamma], tokens [B, gamma+1] that passed the checks of an answer's form."""
    vocab, gamma = reading.vocab, reading.gamma
    accept = np.zeros((gamma, vocab, 2), np.int64)
    residual = np.zeros((gamma, vocab), np.int64)
    pairs = np.zeros((gamma, reading.tracks, vocab), np.int64)
    emitted = np.zeros((gamma + 1, vocab), np.int64)
    repeats = np.zeros(vocab, np.int64)
    length = np.zeros(gamma + 2, np.int64)
    later: list[IntArray] = []
    broken = kept = echoes = 0
    rows: IntArray | slice = slice(None)
    level = np.zeros(len(drafts), np.int64)
    for i in range(gamma):
        x, y, follows = drafts[rows, i], tokens[rows, i], tokens[rows, i + 1] >= 0
        same = x == y
        accepted = same & follows
        rejected = ~accepted
        emitted[i] = np.bincount(y, minlength=vocab)
        wrong = rejected & follows
        if wrong.any():
            broken += int(wrong.sum())
            if i + 1 < gamma:
                where = np.flatnonzero(wrong) if isinstance(rows, slice) else rows[wrong]
                kept += int((tokens[where, i + 1 : gamma] == drafts[where, i + 1 :]).all(-1).sum())
        length[i + 1] += int(rejected.sum())
        x_rejected, y_rejected = x[rejected], y[rejected]
        if i == gamma - 1:
            ends = x_rejected == y_rejected
            repeats = np.bincount(x_rejected[ends], minlength=vocab)
            x_rejected, y_rejected = x_rejected[~ends], y_rejected[~ends]
        else:
            echoes += int((x_rejected == y_rejected).sum())
        refused = np.bincount(x_rejected, minlength=vocab)
        kept_drafts = np.bincount(x[accepted], minlength=vocab)
        accept[i] = np.stack([refused, kept_drafts], -1)
        residual[i] = np.bincount(y_rejected, minlength=vocab)
        if reading.tracks:
            track = reading.tracked[i, x_rejected]
            hit = track >= 0
            code = track[hit] * vocab + y_rejected[hit]
            pairs[i] = np.bincount(code, minlength=reading.tracks * vocab).reshape(reading.tracks, vocab)
        if i:
            known = level > 0  # at level 0 the uniform is known to lie in [0, 1): nothing to bet on
            outcome = accepted.astype(np.int64)
            if i == gamma - 1:
                outcome[rejected & same] = 2
            later.append((((i * LEVELS + level[known]) * vocab) + x[known]) * 3 + outcome[known])
        level = np.maximum(level, reading.level[i, x])[accepted]
        rows = np.flatnonzero(accepted) if isinstance(rows, slice) else rows[accepted]
    last = tokens[rows, gamma]
    bonus = np.bincount(last, minlength=vocab)
    emitted[gamma] = bonus
    length[gamma + 1] += len(last)
    codes = np.concatenate(later) if later else np.zeros(0, np.int64)
    return Tally(
        len(drafts), accept, repeats, residual, pairs, bonus, emitted, length,
        _histogram(codes, gamma * LEVELS * vocab * 3), echoes, broken, kept,
    )  # fmt: skip


@dataclass(frozen=True)
class FirstTokens:
    """Counts of `sample`: emitted tokens [V] when the draft was accepted, and when it was rejected.

    Where the adapter does not say which, `accepted` is None and `tokens` has them all.
    """

    rounds: int
    tokens: IntArray
    accepted: IntArray | None

    def __add__(self, other: FirstTokens) -> FirstTokens:
        both = None if self.accepted is None or other.accepted is None else self.accepted + other.accepted
        return FirstTokens(self.rounds + other.rounds, self.tokens + other.tokens, both)


def read_first(case: Case, tokens: IntArray, accepted: npt.NDArray[np.bool_] | None) -> FirstTokens:
    """Count first tokens [n] and, where given, the accepted ones among them."""
    every = np.bincount(tokens, minlength=case.vocab)
    kept = None if accepted is None else np.bincount(tokens[accepted], minlength=case.vocab)
    return FirstTokens(len(tokens), every, kept)
