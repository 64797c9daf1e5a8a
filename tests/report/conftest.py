"""Two realistic reports, with the numbers that a simulation gives: a faulty sampler and a correct one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from auditor import results
from auditor.efficiency import expected_tokens

PROMISES = {
    "structure": "accepted drafts are a prefix, exactly one token follows, ids are in range",
    "support": "no token of target probability 0 is emitted",
    "output-law": "the emitted tokens follow the target, jointly over positions",
    "acceptance-law": "each draft is accepted with the rule's probability, token by token",
    "acceptance-rate": "the mean acceptance is the rule's",
    "residual-law": "after a rejection the token follows the residual",
    "bonus-token": "all accepted: exactly one more token, from the target's next law",
    "round-length": "tokens per target pass follow the exact law of the round length",
    "position-alignment": "position i uses p[i] and q[i], not a neighbour's",
    "seed-independence": "two seeds give independent draws",
    "exact-law": "acceptance, residual and bonus equal the theory to within the tolerance",
    "draft-law": "drafts follow the q that is reported",
}
SKIPPED = {"exact-law": "the adapter has no method law", "draft-law": "the adapter has no method speculate"}
THRESHOLD = math.log(12 / 1e-6)
TARGET = [0.40, 0.25, 0.15, 0.10, 0.06, 0.04]
DRAFT = [0.35, 0.30, 0.20, 0.10, 0.03, 0.02]
FAULTS = (
    *("residual-target", "residual-draft", "residual-uniform", "residual-absolute", "residual-reversed"),
    *("residual-squared", "residual-neighbour", "accept-always", "accept-inverse", "accept-target"),
    *("accept-threshold", "accept-tempered", "accept-lenient", "accept-strict", "accept-epsilon", "bonus-dropped"),
    *("bonus-greedy", "bonus-previous", "bonus-draft", "bonus-tempered", "target-tempered", "target-top-k"),
    *("target-top-p", "shared-uniform", "kept-after-rejection", "onehot-treatment"),
)
SNIPPET = """import numpy as np
from mine import step                     # the sampler that was audited: step(p, q, rng) -> (token, accepted)

rng = np.random.default_rng(20)
p, q = np.array([0.5, 0.5]), np.array([1.0, 0.0])
rounds = [step(p, q, rng) for _ in range(20_000)]
after_rejection = [token for token, accepted in rounds if not accepted]
print("expected: always token 1; observed token 0:", np.mean(np.array(after_rejection) == 0))
"""


def case_results(rng: np.random.Generator, count: int, shift: float = 0.0) -> list[results.CaseResult]:
    """Visits to generated cases, the acceptance of each drawn from a binomial law of the right (or shifted) rate."""
    made = []
    for index in range(count):
        vocab, gamma = int(rng.choice([2, 3, 6, 50, 1000])), int(rng.integers(1, 9))
        p = rng.dirichlet(np.full(vocab, 0.6))
        q = 0.999 * (p + (mix := rng.uniform(0, 1)) * (rng.dirichlet(np.full(vocab, 0.6)) - p)) + 0.001 / vocab
        rate, rounds = float(np.minimum(p, q).sum()), int(rng.integers(500, 4000))
        seen = float(rng.binomial(rounds, min(1.0, rate * (1 + shift)))) / rounds
        error = 1.96 * math.sqrt(max(seen * (1 - seen), 1e-4) / rounds)
        tokens = expected_tokens(rate, gamma)
        spread = float(rng.normal(0, 0.6 * math.sqrt(gamma) / math.sqrt(rounds)))
        observed = min(gamma + 1.0, max(1.0, expected_tokens(min(1.0, rate * (1 + shift)), gamma) + spread))
        made.append(
            results.CaseResult(
                index=index,
                case=results.CaseData(f"dirichlet, mix {mix:.2f}", vocab, gamma, f"{index:08x}", "dirichlet"),
                method="verify",
                rounds=rounds,
                acceptance=seen,
                acceptance_interval=(max(0.0, seen - error), min(1.0, seen + error)),
                acceptance_expected=rate,
                tv=1 - rate,
                kl=float((p * np.log(p / q)).sum()),
                tokens_per_pass=observed,
                tokens_per_pass_interval=(observed - 0.05, observed + 0.05),
                tokens_per_pass_expected=tokens,
                evidence={"output-law": float(rng.normal(-0.5, 1.0))},
            )
        )
    return made


def proof(observed: list[float], p_value: float, note: str = "") -> results.Proof:
    """The proof by counting on the pair that people check by hand."""
    gaps = [abs(a - b) for a, b in zip(observed, TARGET, strict=True)]
    return results.Proof(
        method="verify",
        rounds=200_000,
        target=TARGET,
        draft=DRAFT,
        observed=observed,
        largest_gap=max(gaps),
        largest_gap_token=int(np.argmax(gaps)),
        chi_square=200_000 * sum(gap**2 / p for gap, p in zip(gaps, TARGET, strict=True)),
        degrees_of_freedom=5,
        p_value=p_value,
        tv=sum(gaps) / 2,
        tv_low=max(0.0, sum(gaps) / 2 - 0.002),
        tv_high=sum(gaps) / 2 + 0.002,
        gamma=4,
        acceptance=0.9003,
        acceptance_interval=(0.8997, 0.9009),
        acceptance_expected=0.9,
        tokens_per_pass=4.0968,
        tokens_per_pass_interval=(4.0905, 4.1031),
        tokens_per_pass_expected=4.0951,
        note=note,
    )


def claim_results(evidence: dict[str, tuple[float, str]]) -> list[results.ClaimResult]:
    """The claims of a mode; `evidence` has those that are violated, with their finding."""
    made = []
    for k, (name, promise) in enumerate(PROMISES.items()):
        if name in SKIPPED:
            made.append(results.ClaimResult(name, promise, "skipped", reason=SKIPPED[name]))
            continue
        nats, finding = evidence.get(name, (0.0 if name == "structure" else (7 * k % 5) / 2, ""))
        status: results.ClaimStatus = "violated" if finding else "holds"
        made.append(
            results.ClaimResult(name, promise, status, "", nats, THRESHOLD, 1_234_567 // (k + 1), finding or None)
        )
    return made


def violated() -> results.Report:
    """A sampler that draws from the target after a rejection."""
    rng = np.random.default_rng(5)
    small = results.CaseData(
        "", 2, 1, "5f1c0d2e", "simplex", "shrunk from case 31", p=[[0.5, 0.5], [0.5, 0.5]], q=[[1.0, 0.0]]
    )
    worst = results.CaseData(
        "zipf, permuted",
        6,
        2,
        "a81b3c44",
        "zipf",
        "generated",
        p=[rng.dirichlet(np.ones(6)).round(4).tolist() for _ in range(3)],
        q=[rng.dirichlet(np.ones(6)).round(4).tolist() for _ in range(2)],
    )
    seen = float(rng.binomial(10_004, 0.5)) / 10_004
    residual = results.LawTable(
        "Token after a rejection", ["0", "1"], [0.0, 1.0], [seen, 1 - seen], 10_004, [0.5, 0.5], [1.0, 0.0]
    )
    first = float(rng.binomial(20_000, 0.75)) / 20_000
    output = results.LawTable(
        "First emitted token", ["0", "1"], [0.5, 0.5], [first, 1 - first], 20_000, [0.5, 0.5], [1.0, 0.0]
    )
    diagnosis = results.Diagnosis(
        "residual-target",
        "After a rejection it samples from the target itself instead of the residual max(p − q, 0).",
        1.0,
        412.6,
        0.43,
        [
            results.Explanation("residual-absolute", "After a rejection it samples from |p − q|.", 1.0, 412.6),
            results.Explanation("accept-lenient", "It accepts drafts too often, by a factor of 1.25.", 1.0, 981.0),
            results.Explanation("residual-uniform", "After a rejection it samples uniformly.", 0.1, 1204.3),
        ],
    )
    shared = {
        "mode": "",
        "method": "verify",
        "rounds": 412,
        "seconds": 0.31,
        "case": worst,
        "smallest": small,
        "diagnosis": diagnosis,
        "confirmation": results.Confirmation(20_000, 6871.2, 0.0, 0.5025, 0.4885),
        "log": [(3, 21.4), (31, 12.2), (7, 2.1)],
        "seed": 20,
        "snippet": SNIPPET,
    }
    findings = [
        results.Finding(
            id="F1",
            claim="residual-law",
            title="After a rejection it samples from the target, not from the residual",
            text=(
                "When a draft is rejected, the replacement must come from max(p − q, 0), normalised. On the smallest case "
                "that is always token 1, but token 0 came up in half of the rejections. Every token that the draft "
                "over-proposes is therefore emitted too often: the output no longer follows the target."
            ),
            evidence=24.7,
            threshold=THRESHOLD,
            laws=[residual],
            replay="audit replay audit-report/F1.json",
            **shared,
        ),
        results.Finding(
            id="F2",
            claim="output-law",
            title="The emitted tokens do not follow the target",
            text="Token 0 is emitted with probability 0.75 where the target has 0.5. F1 explains it.",
            evidence=18.1,
            threshold=THRESHOLD,
            laws=[output],
            replay="audit replay audit-report/F2.json",
            **{
                **shared,
                "rounds": 988,
                "seconds": 0.52,
                "confirmation": results.Confirmation(20_000, 2744.9, 0.0, 0.25, 0.24),
            },
        ),
    ]
    overlap = np.minimum(TARGET, DRAFT)
    observed = overlap + 0.1 * np.array(TARGET)
    counts = rng.multinomial(200_000, observed / observed.sum()) / 200_000
    mode = results.ModeResult(
        name="",
        rule="rejection",
        tolerance=1e-6,
        resolution=2.0**-21,
        methods=["sample", "verify"],
        claims=claim_results({"output-law": (18.1, "F2"), "residual-law": (24.7, "F1")}),
        findings=findings,
        cases=case_results(rng, 60),
        proof=proof(counts.tolist(), 0.0),
        assurance=[],
        metrics=results.Metrics(186_400, 95, 60, 1.9, 0.6, 0.713, 0.7131),
    )
    return results.Report(
        run=results.Run(
            version="0.1.0",
            started="2026-03-02T09:14:07Z",
            seconds=3.4,
            seed=20,
            alpha=1e-6,
            max_rounds=200_000,
            max_seconds=120.0,
            rounds=186_400,
            command="audit run --adapter mine.py:step --seed 20 --report audit-report",
            python="3.11.9",
            platform="Linux x86_64",
        ),
        adapter=results.AdapterInfo(
            "step", "mine.py:step", {"variant": "naive"}, {"numpy": "2.2.1"}, "The speculative step of a tutorial."
        ),
        verdict="violated",
        exit_code=1,
        modes=[mode],
    )


def conforming() -> results.Report:
    """A correct sampler, in two modes."""
    rng = np.random.default_rng(6)
    base = violated()
    severities = [0.0008, 0.002, 0.004, 0.009, 0.03, None]
    modes = []
    for name, rule in (("draft-model", "rejection"), ("prompt-lookup", "onehot")):
        counts = rng.multinomial(200_000, TARGET) / 200_000
        modes.append(
            results.ModeResult(
                name=name,
                rule=rule,
                tolerance=1e-6,
                resolution=2.0**-24,
                methods=["sample", "verify"],
                claims=claim_results({}),
                cases=case_results(rng, 140),
                proof=proof(counts.tolist(), 0.62),
                assurance=[
                    results.Assurance(fault, severities[k % 5 if k else 5], 0.99, "output-law")
                    for k, fault in enumerate(FAULTS)
                ],
                metrics=results.Metrics(200_000, 160, 140, 6.1, 1.2, 0.742, 0.7419),
                summary=f"Drafts come from {name.replace('-', ' ')}.",
            )
        )
    return replace(
        base,
        run=replace(base.run, rounds=400_000, seconds=16.2, command="audit run --adapter reference --seed 20"),
        adapter=results.AdapterInfo("reference", "reference", {}, {"numpy": "2.2.1"}, "Rejection sampling in NumPy."),
        verdict="conforming",
        exit_code=0,
        modes=modes,
    )


@pytest.fixture(name="violated")
def violated_fixture() -> results.Report:
    """A realistic report of a faulty sampler."""
    return violated()


@pytest.fixture(name="conforming")
def conforming_fixture() -> results.Report:
    """A realistic report of a correct sampler with two modes."""
    return conforming()
