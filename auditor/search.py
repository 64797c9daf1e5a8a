"""Hypothesis as the engine: it proposes cases and steers to those that are worth most.

What it steers by is the evidence that a case is expected to give (`auditor.bets.predict`), not what was drawn: no draw happens inside
a Hypothesis test body, so nothing is flaky, no sampler's random state is touched, and every bet stays predictable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, seed, settings, target
from hypothesis.errors import HypothesisWarning

from auditor.cases import Case, cases


def propose(
    number: int,
    run_seed: int,
    worth: Callable[[Case], float],
    *,
    max_vocab: int = 64,
    max_gamma: int = 4,
    large_vocab: bool = False,
) -> list[Case]:
    """`number` distinct cases, at most; those that Hypothesis makes while it climbs `worth` (larger is better)."""
    found: dict[str, Case] = {}

    @seed(run_seed)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.target),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(max_vocab=max_vocab, max_gamma=max_gamma, large_vocab=large_vocab))
    def body(case: Case) -> None:
        if case.digest not in found:
            found[case.digest] = case
        target(worth(case))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)
        body()
    return list(found.values())
