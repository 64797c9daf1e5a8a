# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy"]
# ///
"""Every catalogued fault as a sampler: `--option fault=NAME`, `--option severity=0.1` (each event follows the fault so often)."""

from __future__ import annotations

import difflib

import numpy as np

from auditor.adapter import BoolArray, FloatArray, IntArray
from auditor.draws import drafts_from, rounds
from auditor.rules import FAULTS, RULES


class Faulty:
    """A sampler with one catalogued fault, drawn from the same laws that the auditor's directed bets use."""

    resolution = 2.0**-40

    def __init__(self, fault: str = "residual-p", severity: float = 1.0, rule: str = "rejection") -> None:
        if fault not in FAULTS:
            near = difflib.get_close_matches(fault, FAULTS, n=1, cutoff=0.0)
            raise ValueError(f"no fault {fault!r}; the nearest is {near[0]!r} (`audit list` shows all)")
        if rule not in RULES:
            raise ValueError(f"no rule {rule!r}; there are {', '.join(RULES)}")
        if not 0 <= severity <= 1:
            raise ValueError(f"severity {severity} is not a probability")
        self.fault, self.severity, self.rule = FAULTS[fault], severity, rule

    def sample(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> tuple[IntArray, BoolArray]:
        """One draft and its verification, n times; the round of one draft without its bonus token."""
        rng = np.random.Generator(np.random.SFC64(seed))
        drafts = drafts_from(q[None], n, rng)
        tokens = self._rounds(np.broadcast_to(np.stack([p, p]), (n, 2, len(p))), q[None, None], drafts, rng)
        # With the bonus dropped a full round of one draft has one token too; it was accepted all the same.
        accepted = (tokens[:, 1] >= 0) | (self.fault.drops_bonus & (tokens[:, 0] == drafts[:, 0]))
        return tokens[:, 0], accepted

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        """Verification of a batch of drafts."""
        return self._rounds(p, q, drafts, np.random.Generator(np.random.SFC64(seed)))

    def _rounds(self, p: FloatArray, q: FloatArray, drafts: IntArray, rng: np.random.Generator) -> IntArray:
        q = np.broadcast_to(q, (len(drafts), *q.shape[1:]))
        return rounds(self.fault, p, q, drafts, rng, severity=self.severity, base=RULES[self.rule])
