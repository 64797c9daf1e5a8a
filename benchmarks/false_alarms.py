"""How often correct samplers are accused; see README.md.

python -m benchmarks.false_alarms short --audits 20000
python -m benchmarks.false_alarms whole --audits 200
python -m benchmarks.false_alarms long --rounds 100000000
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from auditor.adapter import Mode
from auditor.audit import AuditConfig, Loaded, run_audit
from auditor.bets.books import RoundBook
from auditor.bets.boxes import Precision
from auditor.cases import Case, explicit_cases, family_case
from auditor.catalog import load
from auditor.evidence import binomial_interval
from auditor.rules import RULES
from auditor.selftest import Verify, adapter_verify, correct, false_alarms
from tests.miniatures.correct import CounterBased, ExponentialRace, Float16, Float32, InverseCdf, OneHot, SampleAndMatch

ALPHA = 0.01
FAMILIES = (
    "dirichlet",
    "zipf",
    "near-equal",
    "disjoint",
    "sparse",
    "one-hot",
    "ties",
    "last-token",
    "tiny",
    "tempered",
    "permuted",
)
LOOKS = (32, 128, 400)


@dataclass(frozen=True)
class Plain:
    """A sampler of the tests, as the audit takes a loaded adapter."""

    name: str
    sampler: type
    source: str = "tests/miniatures"
    summary: str = ""
    options: dict[str, str] = field(default_factory=dict)
    engine: dict[str, str] = field(default_factory=dict)
    modes: tuple[Mode, ...] = ()

    @property
    def build(self) -> Callable[[str | None], object]:
        """The sampler needs nothing to be built."""
        return lambda mode: self.sampler()


def case_pool(size: int) -> list[Case]:
    """Small cases of every kind: the explicit ones and the families."""
    cases = [case for case in explicit_cases() if case.vocab <= 16]
    for k in range(size):
        vocab, gamma = (2, 3, 4, 6, 8, 12)[k % 6], 1 + k // 6 % 3
        try:
            cases.append(family_case(FAMILIES[k % len(FAMILIES)], vocab, gamma, k))
        except ValueError:  # a family that needs a larger vocabulary
            continue
    return cases[:size]


def samplers() -> dict[str, tuple[Verify, str, Precision]]:
    """Name -> (sampler, its rule, its precision as declared)."""
    out: dict[str, tuple[Verify, str, Precision]] = {}
    for rule in RULES:
        out[f"the rule {rule}"] = (correct(rule), rule, Precision(1e-6, 2.0**-40))
    adapter = load("reference", options={"dtype": "float32"}).build(None)
    out["reference float32"] = (adapter_verify(adapter), "rejection", Precision(1e-6, 2.0**-40))
    for sampler in (InverseCdf, Float32, Float16, ExponentialRace, CounterBased, SampleAndMatch, OneHot):
        declared = Precision(getattr(sampler, "tolerance", 1e-6), getattr(sampler, "resolution", 2.0**-21))
        out[sampler.__name__] = (adapter_verify(sampler()), sampler.rule, declared)
    return out


def short(audits: int, first: int) -> dict[str, object]:
    """Many short audits, each of two cases with three looks at each; every look may stop it."""
    cases, kinds, books = case_pool(180), samplers(), {}
    by: dict[str, list[int]] = {name: [0, 0] for name in kinds}
    for seed in range(first, first + audits):
        name = list(kinds)[seed % len(kinds)]
        verify, rule, precision = kinds[name]
        chosen = []
        for k in np.random.default_rng([seed, 99]).choice(len(cases), 2, replace=False):
            key = (int(k), rule, precision)
            if key not in books:
                books[key] = RoundBook(cases[k], RULES[rule], precision)
            chosen.append(books[key])
        alarms, _ = false_alarms(verify, chosen, LOOKS, ALPHA, [seed])
        by[name][0] += alarms
        by[name][1] += 1
        if seed % 1000 == 999:
            print(seed + 1 - first, "audits,", sum(a for a, _ in by.values()), "alarms", flush=True)
    total = sum(a for a, _ in by.values())
    interval = binomial_interval(total, audits)
    return {
        "audits": audits, "first_seed": first, "alpha": ALPHA, "alarms": total, "rate": interval.value,
        "interval95": [interval.low, interval.high], "by_sampler": by, "cases": len(cases), "looks": LOOKS, "cases_per_audit": 2,
    }  # fmt: skip


def whole(audits: int, seconds: float) -> dict[str, object]:
    """Whole audits with everything on: independence checks, search, focus, the proof by counting."""
    kinds: list[Loaded] = [
        load("reference", options={"dtype": "float32"}),
        *(Plain(s.__name__, s) for s in (InverseCdf, Float32, OneHot)),
    ]
    alarms, done, rounds, start, accused = 0, 0, 0, time.monotonic(), []
    for seed in range(audits):
        if time.monotonic() - start > seconds:
            break
        config = AuditConfig(alpha=ALPHA, seed=seed, max_rounds=20_000, max_seconds=20.0)
        report = run_audit(kinds[seed % len(kinds)], config, lambda event: None)
        done += 1
        rounds += report.run.rounds
        if report.verdict != "conforming":
            alarms += 1
            accused.append([report.adapter.name, seed, report.verdict, [f.claim for f in report.findings]])
    interval = binomial_interval(alarms, done)
    return {
        "audits": done, "alpha": ALPHA, "alarms": alarms, "interval95": [interval.low, interval.high], "rounds": rounds,
        "accused": accused, "seconds": round(time.monotonic() - start),
    }  # fmt: skip


def long(rounds: int, seconds: float) -> dict[str, object]:
    """One long audit at the default alpha of each of two float32 samplers."""
    out: dict[str, object] = {}
    subjects: tuple[Loaded, ...] = (load("reference", options={"dtype": "float32"}), Plain("Float32", Float32))
    for loaded in subjects:
        start = time.monotonic()
        report = run_audit(loaded, AuditConfig(seed=1, max_rounds=rounds, max_seconds=seconds), lambda event: None)
        claims = {
            c.id: round(c.evidence, 2)
            for mode in report.modes
            for c in mode.claims
            if c.status in ("holds", "violated")
        }
        out[loaded.name] = {
            "rounds": report.run.rounds, "verdict": report.verdict, "stopped": report.run.stopped,
            "seconds": round(time.monotonic() - start), "evidence": claims,
            "adapter_seconds": round(sum(m.metrics.adapter_seconds for m in report.modes), 1),
            "harness_seconds": round(sum(m.metrics.harness_seconds for m in report.modes), 1),
        }  # fmt: skip
        print(loaded.name, out[loaded.name], flush=True)
    return out


def main() -> None:
    """Run one of the three measurements and write what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("short", "whole", "long"))
    parser.add_argument("--audits", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="Seed of the first audit, to run a part.")
    parser.add_argument("--rounds", type=int, default=100_000_000)
    parser.add_argument("--seconds", type=float, default=900.0, help="Time for `whole`, and for each of `long`.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    if args.what == "short":
        found = short(args.audits, args.first)
    elif args.what == "whole":
        found = whole(args.audits, args.seconds)
    else:
        found = long(args.rounds, args.seconds)
    (args.out / f"false_alarms_{args.what}.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found), f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
