"""The wealth of every claim: a fold over the journal's visits.

A claim's wealth is the weighted mean of the wealths of its stakes, one stake for each method that shows it (a fault of one
method must not be diluted by the other). A stake's wealth is the weighted mean of its bets: half of the weight on the
directed bets, a third on the tilts, the rest on the local bets, which stake a fraction of their wealth on each visit's own
e-value. Every bet's log pay-off adds up over visits, so folding is addition.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.bets.books import JOINT, Evidence
from auditor.bets.fields import SEVERITIES, Score
from auditor.evidence import LOCAL_FRACTIONS, local_bets, log_mean

FloatArray = npt.NDArray[np.float64]

_GROUPS = {"directed": 1 / 2, "tilts": 1 / 3, "local": 1 / 6}
METHOD_SHARES = {"verify": 3 / 4, "sample": 1 / 4}
"""Shares of a claim's weight where both methods show it; `verify` gets most of the rounds."""


def pack(values: FloatArray) -> str:
    """An array of float64 as text, exactly."""
    return base64.b64encode(np.ascontiguousarray(values, "<f8").tobytes()).decode()


def unpack(text: str) -> FloatArray:
    """The inverse of `pack`."""
    return np.frombuffer(base64.b64decode(text), "<f8")


def packed(score: Score) -> dict[str, Any]:
    """A score as a journal line has it."""
    return {"bets": pack(score.bets), "omnibus": score.omnibus, "directed": score.directed, "events": score.events}


def unpacked(entry: dict[str, Any]) -> Score:
    """The inverse of `packed`."""
    return Score(unpack(entry["bets"]), entry["omnibus"], entry["directed"], entry["events"])


def log_weights(directed: int, tilts: int) -> FloatArray:
    """Log weights of a stake's bets: directed, tilts, local. They sum to 1; the shares of empty groups go to the others."""
    sizes = {"directed": directed, "tilts": tilts, "local": len(LOCAL_FRACTIONS)}
    total = sum(_GROUPS[g] for g, size in sizes.items() if size)
    parts = [np.full(size, _GROUPS[g] / total / size) for g, size in sizes.items() if size]
    return np.asarray(np.log(np.concatenate(parts)))


def entries(evidence: Evidence, edge: bool) -> dict[str, Any]:
    """The part of a journal line that a visit's evidence fills."""
    scores = {claim: packed(s) for claim, s in evidence.scores.items()}
    return {"scores": scores, "joint": pack(np.maximum(evidence.joint, -1e12).ravel()), "edge": edge}


@dataclass
class Stake:
    """One claim seen through one method."""

    weights: FloatArray
    sums: FloatArray
    events: int = 0

    def after(self, logs: FloatArray) -> float:
        """The log-wealth if these pay-offs were added."""
        return log_mean(self.sums + logs, self.weights)


def _pay(score: Score) -> FloatArray:
    return np.concatenate([score.bets, local_bets(score.local)])


def edge_score(scores: dict[str, Score]) -> Score:
    """The evidence of an edge case on its own: the mean of its claims' local e-values, which is an e-value again."""
    parts = [s.local for claim, s in scores.items() if claim in _EDGE_PARTS]
    events = max((s.events for claim, s in scores.items() if claim in _EDGE_PARTS), default=0)
    return Score(np.zeros(0), log_mean(np.array(parts)), 0, events)


_EDGE_PARTS = ("acceptance-law", "residual-law", "bonus-token", "output-law", "support")


@dataclass
class Wealth:
    """Log-wealth of the checked claims of one mode, and the joint evidence that names a fault."""

    claims: tuple[str, ...]
    methods: tuple[str, ...]
    alpha: float
    share: float = 1.0
    """This mode's share of the error rate."""
    stakes: dict[tuple[str, str], Stake] = field(default_factory=dict)
    joint: dict[str, FloatArray] = field(default_factory=dict)
    """Joint evidence [fault, severity] by method."""
    coins: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Log-wealth and events of the claims that are judged by exchange (`auditor.bets.independence`)."""

    @property
    def threshold(self) -> float:
        """Log-wealth at which a claim is violated: log(1 / (alpha w)), equal weights over claims."""
        return float(-np.log(self.alpha * self.share / max(1, len(self.claims))))

    def _scores(self, scores: dict[str, Score], edge: bool) -> dict[str, Score]:
        judged = dict(scores)
        if edge:
            judged["edge-cases"] = edge_score(scores)
        return {claim: s for claim, s in judged.items() if claim in self.claims}

    def _stake(self, claim: str, method: str, score: Score) -> Stake:
        key = (claim, method)
        if key not in self.stakes:
            weights = log_weights(score.directed, len(score.bets) - score.directed)
            self.stakes[key] = Stake(weights, np.zeros(len(weights)))
        return self.stakes[key]

    def preview(self, scores: dict[str, Score], method: str, edge: bool) -> dict[str, float]:
        """Log-wealth of each claim that the visit in progress speaks to, if it ended now."""
        out = {}
        for claim, score in self._scores(scores, edge).items():
            out[claim] = self._combine(claim, {method: self._stake(claim, method, score).after(_pay(score))})
        return out

    def add(self, entry: dict[str, Any]) -> None:
        """Fold one journal line in."""
        if entry["kind"] == "visit":
            scores = {claim: unpacked(s) for claim, s in entry["scores"].items()}
            for claim, score in self._scores(scores, entry["edge"]).items():
                stake = self._stake(claim, entry["method"], score)
                stake.sums = stake.sums + _pay(score)
                stake.events += score.events
            joint = unpack(entry["joint"]).reshape(len(JOINT), len(SEVERITIES))
            self.joint[entry["method"]] = self.joint.get(entry["method"], 0.0) + joint
        elif entry["kind"] == "mixed" and "row-independence" in self.claims:
            score = unpacked(entry["score"])
            stake = self._stake("row-independence", "verify", score)
            stake.sums = stake.sums + _pay(score)
            stake.events += score.events
        elif entry["kind"] == "coins" and entry["claim"] in self.claims:
            self.coins[entry["claim"]] = (entry["log_wealth"], entry["events"])

    def log_wealth(self, claim: str) -> float:
        """The claim's log-wealth now.

        `row-independence` stakes half of its wealth on the exchange of rows and half on mixed batches, from the start: what is not
        staked yet counts as it is.
        """
        exchange = self.coins.get(claim, (0.0, 0))[0]
        if claim == "row-independence":
            return log_mean(np.array([exchange, self._combine(claim, {})]))
        return exchange if claim in self.coins else self._combine(claim, {})

    def events(self, claim: str) -> int:
        """Events that spoke to the claim."""
        coins = self.coins[claim][1] if claim in self.coins else 0
        return coins + sum(s.events for (c, _), s in self.stakes.items() if c == claim)

    def _combine(self, claim: str, now: dict[str, float]) -> float:
        methods = [m for m in self.methods if m in METHOD_SHARES and _shows(claim, m)]
        total = sum(METHOD_SHARES[m] for m in methods)
        logs, weights = [], []
        for method in methods:
            stake = self.stakes.get((claim, method))
            current = now.get(method, log_mean(stake.sums, stake.weights) if stake else 0.0)
            logs.append(current)
            weights.append(np.log(METHOD_SHARES[method] / total))
        return log_mean(np.array(logs), np.array(weights)) if logs else 0.0


def _shows(claim: str, method: str) -> bool:
    return method == "verify" or claim not in ("bonus-token", "round-length", "position-alignment")
