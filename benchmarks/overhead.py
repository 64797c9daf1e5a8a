"""The harness's own share of an audit's wall time, and its memory at a vocabulary of 128,000; see README.md.

python -m benchmarks.overhead time --adapter reference --seconds 60
python -m benchmarks.overhead time --adapter transformers --seconds 60
python -m benchmarks.overhead memory
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VOCABULARIES = (6, 1000, 32_000, 128_000)


class Timed:
    """An adapter whose calls are counted in seconds of processor time: on a shared machine the wall says less."""

    METHODS = ("sample", "verify", "law")

    def __init__(self, adapter: object) -> None:
        self.adapter, self.seconds = adapter, 0.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.adapter, name)
        if name not in self.METHODS:
            return value

        def call(*args: Any) -> Any:
            start = time.process_time()
            try:
                return value(*args)
            finally:
                self.seconds += time.process_time() - start

        return call


def share(name: str, seconds: float, rounds: int) -> dict[str, object]:
    """One whole audit: seconds in the adapter and in the harness, by the wall as the report has them, and of processor time."""
    from auditor.audit import AuditConfig, run_audit
    from auditor.catalog import load

    loaded = load(name, options={})
    timed: list[Timed] = []

    def build(mode: str | None) -> Timed:
        timed.append(Timed(loaded.build(mode)))
        return timed[-1]

    start = time.process_time()
    config = AuditConfig(seed=1, max_rounds=rounds, max_seconds=seconds)
    report = run_audit(dataclasses.replace(loaded, build=build), config, lambda event: None)
    total, inside = time.process_time() - start, sum(t.seconds for t in timed)
    adapter = sum(mode.metrics.adapter_seconds for mode in report.modes)
    harness = sum(mode.metrics.harness_seconds for mode in report.modes)
    return {
        "adapter": name, "verdict": report.verdict, "stopped": report.run.stopped, "seconds": report.run.seconds,
        "rounds": report.run.rounds, "adapter_seconds": round(adapter, 2), "harness_seconds": round(harness, 2),
        "adapter_cpu_seconds": round(inside, 2), "harness_cpu_seconds": round(total - inside, 2),
        "harness_share_of_cpu": round((total - inside) / max(total, 1e-9), 3),
    }  # fmt: skip


def one_visit(vocab: int) -> dict[str, object]:
    """One visit of 50,000 rounds with the reference at a vocabulary, in this process: seconds, peak memory."""
    import numpy as np

    from auditor.bets.books import RoundBook
    from auditor.bets.boxes import Precision
    from auditor.bets.tally import read_rounds
    from auditor.bets.wealth import Wealth
    from auditor.cases import family_case
    from auditor.catalog import load
    from auditor.draws import drafts_from
    from auditor.rules import REJECTION
    from auditor.selftest import adapter_verify, round_claims

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    case = family_case("zipf", vocab, 3, 1)
    verify = adapter_verify(load("reference", options={}).build(None))
    book = RoundBook(case, REJECTION, Precision(1e-6, 2.0**-40))
    start = time.perf_counter()
    drafts = drafts_from(case.q, 50_000, np.random.default_rng(1))
    drawn = time.perf_counter()
    tokens = verify(case, drafts, 1)
    verified = time.perf_counter()
    tally = read_rounds(book.reading, drafts, tokens)
    evidence = book.evidence(tally, book.endings(tally))
    Wealth(round_claims(), ("verify",), 1e-6).preview(evidence.scores, "verify", False)
    end = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "vocab": vocab, "gamma": case.gamma, "rounds": len(drafts), "imports_mib": round(before), "peak_mib": round(peak),
        "drafts_seconds": round(drawn - start, 3), "adapter_seconds": round(verified - drawn, 3),
        "evidence_seconds": round(end - verified, 3),
    }  # fmt: skip


def memory() -> list[dict[str, object]]:
    """`one_visit` at every vocabulary, each in a process of its own, so that peaks do not mix."""
    out = []
    for vocab in VOCABULARIES:
        command = [sys.executable, "-m", "benchmarks.overhead", "visit", "--vocab", str(vocab)]
        out.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        print(out[-1], flush=True)
    return out


def main() -> None:
    """Measure and write what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "memory", "visit"))
    parser.add_argument("--adapter", default="reference")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3_000_000)
    parser.add_argument("--vocab", type=int, default=128_000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    if args.what == "visit":
        print(json.dumps(one_visit(args.vocab)))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    found: object
    if args.what == "time":
        found, name = share(args.adapter, args.seconds, args.rounds), f"time_{args.adapter}"
    else:
        found, name = memory(), "memory"
    (args.out / f"overhead_{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
