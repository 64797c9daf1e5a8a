"""Rounds to detection over the Wald limit, for vocabularies from 6 to 128,000; see README.md.

python -m benchmarks.detection --vocab 6 50 --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from auditor.bets.books import RoundBook
from auditor.bets.fields import SEVERITIES
from auditor.cases import Case, family_case
from auditor.rules import FAULTS, REJECTION
from auditor.selftest import PRECISION, Detection, adapter_verify, detect, faulty, loudest
from auditor.wald import nats_per_round
from benchmarks.unlisted import UNLISTED

ALPHA = 1e-6
CAPS = {6: 1_500_000, 50: 1_000_000, 1000: 500_000, 32_000: 400_000, 128_000: 100_000}
"""Rounds a run at most. What has a Wald limit above two thirds of this is not run."""
SAMPLE = ("residual-p", "accept-strict", "bonus-q", "target-temperature", "residual-neighbour", "accept-always")
SAMPLE_UNLISTED = ("QuantisedLogits", "TurnsIntoMode", "NeverLastDraft", "CoarseAcceptance", "TruncatedTail")
"""The faults that are drawn at vocabularies from `EVERY` on, where a look at the evidence takes long."""
EVERY = 1000


def cases(vocab: int) -> list[Case]:
    """The pairs that faults are shown on, all of full support: Dirichlet ones, above 1,000 tokens Zipf ones."""
    if vocab <= EVERY:
        return [family_case("dirichlet", vocab, 2 + k % 2, k) for k in range(4)]
    return [family_case("zipf", vocab, 2, k) for k in range(2)]


def seeds_for(wald: float, vocab: int, seeds: int) -> int:
    """The median over more seeds where runs are short: single events decide there, and it scatters."""
    if vocab >= EVERY:
        return seeds
    return max(seeds, 21 if wald < 3000 else seeds)


@dataclass(frozen=True)
class Row:
    """One fault at one severity and vocabulary."""

    vocab: int
    fault: str
    severity: float
    listed: bool
    claim: str
    wald: float
    seeds: int
    found: int
    rounds: float | None
    """Median; None where most runs did not find it, or it was not run."""
    ratio: float | None
    mean_ratio: float | None
    capped: bool


def row(
    vocab: int, fault: str, severity: float, listed: bool, claim: str, wald: float, runs: Iterable[Detection]
) -> Row:
    """Summary of runs; none means that the cap left no room for one."""
    runs = list(runs)
    if not runs:
        return Row(vocab, fault, severity, listed, claim, wald, 0, 0, None, None, None, True)
    at = np.array([np.inf if r.rounds is None else r.rounds for r in runs])
    unit = max(wald, 1.0)
    middle, found = float(np.median(at)), int(np.isfinite(at).sum())
    known = bool(np.isfinite(middle))
    return Row(
        vocab, fault, severity, listed, claim, wald, len(runs), found,
        middle if known else None,
        middle / unit if known else None,
        float(at.mean()) / unit if found == len(runs) else None,
        found < len(runs),
    )  # fmt: skip


def listed_row(books: list[RoundBook], fault: str, severity: float, seeds: int) -> Row:
    """A catalogued fault on the case that shows it best."""
    book, claim, nats = loudest(books, fault, severity)
    vocab, wald = book.case.vocab, float(np.log(1 / ALPHA) / max(nats, 1e-300))
    cap = CAPS[vocab]
    runs: list[Detection] = []
    if 1.5 * wald <= cap:
        sampler = faulty(fault, severity)
        n = seeds_for(wald, vocab, seeds)
        runs = [detect(book, sampler, claim, wald, cap, ALPHA, seed) for seed in range(n)]
    return row(vocab, fault, severity, True, claim, wald, runs)


def unlisted_row(books: list[RoundBook], name: str, seeds: int) -> Row:
    """A sampler that no bet knows, on the case that shows it best."""
    sampler, law = UNLISTED[name]
    best = max(
        ((nats, book, claim) for book in books for claim, nats in nats_per_round(book, law(book)).items()),
        key=lambda entry: entry[0],
    )
    nats, book, claim = best
    vocab, wald = book.case.vocab, float(np.log(1 / ALPHA) / max(nats, 1e-300))
    runs: list[Detection] = []
    if 1.5 * wald <= CAPS[vocab]:
        verify, n = adapter_verify(sampler()), seeds_for(wald, vocab, seeds)
        runs = [detect(book, verify, claim, wald, CAPS[vocab], ALPHA, seed) for seed in range(n)]
    return row(vocab, name, 1.0, False, claim, wald, runs)


def text_of(r: Row) -> str:
    """One row of the table in the results page."""

    def number(value: float | None, digits: int = 2) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    runs = f"{r.found}/{r.seeds}" if r.seeds else "not run"
    limit = number(r.wald, 1) if r.wald < 1e12 else "no effect here"
    return (
        f"| {r.fault} | {r.severity:g} | {r.claim} | {limit} | {number(r.rounds, 0)} | {number(r.ratio)} | "
        f"{number(r.mean_ratio)} | {runs} |"
    )


HEAD = (
    "| fault | severity | claim | Wald limit, rounds | median rounds | ratio | mean ratio | found |\n"
    "|---|---|---|---|---|---|---|---|"
)


def summary(rows: list[Row]) -> str:
    """How the ratios lie, by kind and severity, and the targets."""
    lines = ["| | rows | median ratio | 90 % | largest | target | rows above |", "|---|---|---|---|---|---|---|"]
    for listed in (True, False):
        for severity in SEVERITIES if listed else (1.0,):
            ratios = np.array([r.ratio for r in rows if r.listed == listed and r.severity == severity and r.ratio])
            if not len(ratios):
                continue
            target = 3.5 if not listed else 2.5 if severity == 1 else 1.8
            kind = f"listed, severity {severity:g}" if listed else "unlisted"
            lines.append(
                f"| {kind} | {len(ratios)} | {np.median(ratios):.2f} | {np.quantile(ratios, 0.9):.2f} | {ratios.max():.2f} "
                f"| {target} | {int((ratios > target).sum())} |"
            )
    return "\n".join(lines)


def render(out: Path) -> None:
    """Write detection.md from the measurements of every vocabulary."""
    parts, every = [], []
    for vocab in CAPS:
        path = out / f"detection_{vocab}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        rows = [Row(**r) for r in found["rows"]]
        every += rows
        note = f"\n\nLeft out for time: {', '.join(found['left_out'])}." if found["left_out"] else ""
        parts.append(f"## V = {vocab:,}\n\n{summary(rows)}\n\n" + "\n".join([HEAD, *map(text_of, rows)]) + note)
    whole = f"# Rounds to detection\n\nAll vocabularies:\n\n{summary(every)}\n\n" + "\n\n".join(parts) + "\n"
    (out / "detection.md").write_text(whole)


def main() -> None:
    """Measure, and write what was found as JSON per vocabulary and one table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="+", default=list(CAPS), choices=list(CAPS))
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument(
        "--severity", type=float, nargs="+", default=list(SEVERITIES), help="1 has the unlisted ones with it."
    )
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="Time for each vocabulary; what is left then is left out."
    )
    parser.add_argument("--resume", action="store_true", help="Only what has not been measured yet.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for vocab in args.vocab:
        start, rows = time.monotonic(), []
        books = [RoundBook(case, REJECTION, PRECISION) for case in cases(vocab)]
        faults = [f for f in FAULTS if not FAULTS[f].keeps] if vocab < EVERY else list(SAMPLE)
        unlisted = [name for name in UNLISTED if vocab < EVERY or name in SAMPLE_UNLISTED]
        jobs: list[tuple[str, float | None]] = [(name, None) for name in unlisted if 1 in args.severity]
        jobs += [(fault, s) for fault in faults for s in args.severity]
        path = args.out / f"detection_{vocab}.json"
        before = json.loads(path.read_text()) if path.exists() else {"rows": [], "left_out": []}
        if args.resume:
            have = {(r["fault"], r["severity"]) for r in before["rows"]}
            jobs = [(name, s) for name, s in jobs if (name, 1.0 if s is None else s) not in have]
        left_out = []
        for name, severity in jobs:
            if time.monotonic() - start > args.seconds:
                left_out.append(name if severity is None else f"{name} at {severity:g}")
                continue
            rows.append(
                unlisted_row(books, name, args.seeds)
                if severity is None
                else listed_row(books, name, severity, args.seeds)
            )
            print(f"V={vocab} {time.monotonic() - start:6.0f} s", text_of(rows[-1]), flush=True)
        # What was measured before at other severities stays.
        now = {(r.fault, r.severity) for r in rows}
        kept = [r for r in before["rows"] if (r["fault"], r["severity"]) not in now]
        rows_now = kept + [asdict(r) for r in rows]
        measured = {r["fault"] if not r["listed"] else f"{r['fault']} at {r['severity']:g}" for r in rows_now}
        left_out = [x for x in dict.fromkeys(left_out + before["left_out"]) if x not in measured]
        found = {"rows": rows_now, "left_out": left_out}
        path.write_text(json.dumps(found, indent=1) + "\n")
    render(args.out)


if __name__ == "__main__":
    main()
