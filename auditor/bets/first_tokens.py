"""The bets on first tokens (`sample`): what one draft and its verification show when the draft itself stays hidden.

An accepted token y has probability q(y) a(y), a rejected draft shows a draw from the residual, and the emitted token, accepted
or not, follows the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from auditor.bets.books import ACCEPT, RESIDUAL, Evidence, RoundBook, joint_pay
from auditor.bets.fields import SEVERITIES, Bernoulli, Categorical, Features, tilted_laws
from auditor.bets.tally import FirstTokens
from auditor.rules import FAULTS

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FirstBook:
    """The bets on first tokens of a case with one draft; `rounds` holds its laws and boxes."""

    rounds: RoundBook

    @cached_property
    def draft_bounds(self) -> tuple[FloatArray, FloatArray]:
        """The adapter draws the draft itself: q [V] within its precision."""
        box, d = self.rounds.box, self.rounds.precision.resolution
        return np.maximum(box.q_low[0] - d, 0.0), np.minimum(box.q_up[0] + d, 1.0)

    def accept_at(self, fault: str, severity: float) -> FloatArray:
        """Acceptance probabilities [V] under a fault at a severity."""
        right = self.rounds.right.accept[0]
        wrong = right if FAULTS[fault].shares_uniform else self.rounds.wrong[fault].accept[0]
        return np.asarray((1 - severity) * right + severity * wrong)

    @cached_property
    def accept_field(self) -> Categorical:
        """Outcomes: accepted as y, by classes of tokens, and, last, rejected."""
        q, at, box = self.rounds.case.q[0], self.rounds.positions[0], self.rounds.box
        group = at.groups.group

        def cells(accept: FloatArray) -> FloatArray:
            return np.append(group(q * accept), max(0.0, 1.0 - float(q @ accept)))[None]

        q_low, q_up = self.draft_bounds
        low, up = q_low * box.accept_low[0], np.minimum(q_up * box.accept_up[0], 1.0)
        low_cells = np.append(group(low), max(0.0, 1 - up.sum()))[None]
        up_cells = np.append(np.minimum(group(up), 1.0), min(1.0, 1 - low.sum()))[None]
        null = cells(self.rounds.right.accept[0])
        directed = np.array([cells(self.accept_at(f, s)) for f in ACCEPT for s in SEVERITIES])
        features = np.pad(at.features, [(0, 0), (0, 1)])[:, None, :]
        tilted = tilted_laws(null, Features(features, np.array([at.never]), np.array([at.always])))
        return Categorical(null, low_cells, up_cells, directed, tilted)

    @cached_property
    def rate_field(self) -> Bernoulli:
        """Accepted or not."""
        q, box = self.rounds.case.q[0], self.rounds.box
        q_low, q_up = self.draft_bounds
        low = max(0.0, float(q_low @ box.accept_low[0]))
        up = min(1.0, float(q_up @ box.accept_up[0]), 1 - float(q_low @ (1 - box.accept_up[0])))
        null = np.array([q @ self.rounds.right.accept[0]])
        directed = np.clip([[q @ self.accept_at(f, s)] for f in ACCEPT for s in SEVERITIES], 0, 1)
        tilted = self.rounds.rate_tilts(null, np.ones(1))
        return Bernoulli(null, np.array([low]), np.array([max(low, up)]), directed, tilted)

    @cached_property
    def residual_field(self) -> Categorical | None:
        """The token after a rejection; None where the rule's residual depends on the draft, which is not shown."""
        book = self.rounds
        if book.by_draft:
            return None
        right, at = book.right.residual, book.positions[0]
        assert right is not None
        group = at.groups.group
        low, up = book.box.residual(0)
        directed = []
        for fault in RESIDUAL:
            for s in SEVERITIES:
                refused = book.case.q[0] * (1 - self.accept_at(fault, s))
                total = refused.sum()
                wrong = book.wrong[fault].mean(0, refused) / total if total > 0 else right[0]
                directed.append(group((1 - s) * right[0] + s * wrong)[None])
        null = group(right[0])[None]
        low, up = (np.minimum(group(side), 1.0)[None] for side in (low, up))
        return Categorical(null, low, up, np.array(directed), book.tilts(null, [0], null.shape[1]))

    def evidence(self, tally: FirstTokens) -> Evidence:
        """Log pay-offs of every claim's bets on the first tokens of one visit."""
        book = self.rounds
        group = book.positions[0].groups.group
        outside = int(tally.tokens[book.case.p[0] <= 0].sum())
        scores = {
            "output-law": book.first_emitted_field.score(group(tally.tokens)[None]),
            "support": book.support_score(tally.rounds, outside),
        }
        if tally.accepted is not None:
            kept = int(tally.accepted.sum())
            cells = np.append(group(tally.accepted), tally.rounds - kept)[None]
            scores["acceptance-law"] = self.accept_field.score(cells)
            scores["acceptance-rate"] = self.rate_field.score(np.array([[tally.rounds - kept, kept]]))
            if self.residual_field is not None:
                scores["residual-law"] = self.residual_field.score(group(tally.tokens - tally.accepted)[None])
            return Evidence(scores, joint_pay(scores))
        # Without the acceptances the emitted tokens alone must name the fault.
        return Evidence(scores, book.joint_of_emitted(scores["output-law"]))
