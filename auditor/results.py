"""What an audit found, as plain values: the data model of `report.json`, and the journal that it is folded from.

Everything a reader of a report sees is rendered from `Report`; renderers know this module and nothing else of ours. The
values are frozen dataclasses of JSON types, read and written by msgspec: unknown fields of a newer minor version are
ignored, missing ones take their defaults, so an old reader opens a new report and the other way round.

All evidence is in nats: a claim is violated when its log-wealth reaches `log(1 / (alpha * weight))`. Probabilities are
fractions. Intervals are (low, high) at 95 % unless said otherwise. No field holds NaN or infinity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

SCHEMA_VERSION = "1.0"

ClaimStatus = Literal["holds", "violated", "skipped", "undecided"]
Verdict = Literal["conforming", "violated", "measured", "inconclusive"]


@dataclass(frozen=True)
class CaseData:
    """One input: target p [gamma+1][V] and draft q [gamma][V]; None where V * gamma is too large to print (see `digest`)."""

    label: str
    vocab: int
    gamma: int
    digest: str
    family: str = ""
    source: str = ""
    p: list[list[float]] | None = None
    q: list[list[float]] | None = None


@dataclass(frozen=True)
class CaseResult:
    """What one visit to a case showed. Rates are per reached position; `None` where the method does not show them."""

    index: int
    case: CaseData
    method: str
    rounds: int
    acceptance: float | None = None
    acceptance_interval: tuple[float, float] | None = None
    acceptance_expected: float | None = None
    tv: float = 0.0
    """Mean over positions of TV(p, q)."""
    kl: float = 0.0
    """Mean over positions of KL(p || q) in nats; capped at 50 where q misses part of p."""
    tokens_per_pass: float | None = None
    tokens_per_pass_interval: tuple[float, float] | None = None
    tokens_per_pass_expected: float | None = None
    evidence: dict[str, float] = field(default_factory=dict)
    """Nats that this visit's own draws speak against each claim."""


@dataclass(frozen=True)
class Explanation:
    """A fault as an explanation of what was seen. `behind` is how many nats it explains less than the best one."""

    fault: str
    words: str
    severity: float
    behind: float = 0.0


@dataclass(frozen=True)
class Diagnosis:
    """The named fault, or "unlisted" where no listed fault fits fresh data (`fit_p_value` is that test's p-value)."""

    fault: str
    words: str
    severity: float | None = None
    decided: float = 0.0
    """Nats between the best explanation and the next one that differs from it on the cases of the run."""
    fit_p_value: float | None = None
    runners_up: list[Explanation] = field(default_factory=list)
    equal_to: list[str] = field(default_factory=list)
    """Listed faults that no case of the run tells apart from this one."""


@dataclass(frozen=True)
class LawTable:
    """An expected and an observed law side by side, over token ids (or over round lengths, as `what` says).

    Where the vocabulary is large, the outcomes with the largest gaps are listed and `rest` is the mass of the others.
    """

    what: str
    outcomes: list[str]
    expected: list[float]
    observed: list[float]
    draws: int
    target: list[float] | None = None
    draft: list[float] | None = None
    rest: float = 0.0


@dataclass(frozen=True)
class Confirmation:
    """A finding on fresh draws of a fixed size: its own evidence (nats), the familiar tests beside it."""

    rounds: int
    evidence: float
    p_value: float | None = None
    tv: float | None = None
    tv_low: float | None = None
    confirmed: bool = True


@dataclass(frozen=True)
class Finding:
    """A violated claim."""

    id: str
    """Short and stable within the report: "F1"."""
    claim: str
    title: str
    """One line that names the fault."""
    text: str
    """What was seen, in a few sentences, enough to act on."""
    mode: str = ""
    method: str = ""
    evidence: float = 0.0
    threshold: float = 0.0
    rounds: int = 0
    """Rounds of the audit after which it was found."""
    seconds: float = 0.0
    case: CaseData | None = None
    """The case that spoke loudest."""
    smallest: CaseData | None = None
    """The smallest case that still shows it."""
    laws: list[LawTable] = field(default_factory=list)
    """Expected and observed on the smallest case (else on the worst), the telling one first."""
    diagnosis: Diagnosis | None = None
    confirmation: Confirmation | None = None
    log: list[tuple[int, float]] = field(default_factory=list)
    """Where the evidence came from: (index of the case visit, nats), largest first."""
    seed: int = 0
    replay: str = ""
    """The command that shows it again."""
    snippet: str = ""
    """A stand-alone Python program that shows it without this package, where the adapter allows it."""


@dataclass(frozen=True)
class Incident:
    """The adapter crashed, raised, hung or ran out of memory: the case that did it, and what it said."""

    kind: str
    text: str
    mode: str = ""
    method: str = ""
    case: CaseData | None = None
    seed: int = 0
    traceback: str = ""
    repeated: bool | None = None
    """Whether the same case failed again; None where it was not tried."""


@dataclass(frozen=True)
class ClaimResult:
    """The judgement on one claim."""

    id: str
    promise: str
    status: ClaimStatus
    reason: str = ""
    evidence: float = 0.0
    threshold: float = 0.0
    events: int = 0
    finding: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class Proof:
    """The proof by counting: a pair that people can check by hand, a fresh sample of a fixed size, the familiar tests."""

    method: str
    rounds: int
    target: list[float]
    draft: list[float]
    observed: list[float]
    largest_gap: float
    largest_gap_token: int
    chi_square: float
    degrees_of_freedom: int
    p_value: float
    tv: float
    tv_low: float
    tv_high: float
    gamma: int = 0
    acceptance: float | None = None
    acceptance_interval: tuple[float, float] | None = None
    acceptance_expected: float | None = None
    tokens_per_pass: float | None = None
    tokens_per_pass_interval: tuple[float, float] | None = None
    tokens_per_pass_expected: float | None = None
    note: str = ""
    """Set where a p-value under 1e-3 stands beside a passing claim: pointed out, not judged."""


@dataclass(frozen=True)
class Assurance:
    """The smallest severity of a fault that this run would have caught with probability `power`; None: not even 1."""

    fault: str
    severity: float | None
    power: float = 0.99
    claim: str = ""


@dataclass(frozen=True)
class Metrics:
    """Numbers that are measured, not judged."""

    rounds: int = 0
    calls: int = 0
    cases: int = 0
    adapter_seconds: float = 0.0
    harness_seconds: float = 0.0
    acceptance: float | None = None
    acceptance_expected: float | None = None
    tv_from_target: tuple[float, float, float] | None = None
    """For a rule that is lossy on purpose: total variation from the target, with its interval (value, low, high)."""


@dataclass(frozen=True)
class ModeResult:
    """One mode of the adapter; adapters without modes have one, named ""."""

    name: str
    rule: str
    tolerance: float
    resolution: float
    methods: list[str]
    claims: list[ClaimResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    proof: Proof | None = None
    assurance: list[Assurance] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    summary: str = ""


@dataclass(frozen=True)
class AdapterInfo:
    """What was audited."""

    name: str
    source: str
    """As it was named on the command line."""
    options: dict[str, str] = field(default_factory=dict)
    engine: dict[str, str] = field(default_factory=dict)
    """Versions of the libraries it wraps."""
    summary: str = ""


@dataclass(frozen=True)
class Run:
    """How the audit was run."""

    version: str
    started: str
    """UTC, ISO 8601."""
    seconds: float
    seed: int
    alpha: float
    max_rounds: int
    max_seconds: float
    rounds: int = 0
    stopped: str = "budget"
    """Why it ended: "budget", "time", "interrupted", "error"."""
    command: str = ""
    python: str = ""
    platform: str = ""
    claims: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """An audit's report; the root of `report.json`."""

    run: Run
    adapter: AdapterInfo
    verdict: Verdict
    exit_code: int
    modes: list[ModeResult] = field(default_factory=list)
    error: str = ""
    """Set where the audit itself ended early: one line."""
    schema: str = SCHEMA_VERSION

    @property
    def findings(self) -> list[Finding]:
        """Every finding of every mode."""
        return [finding for mode in self.modes for finding in mode.findings]

    @property
    def incidents(self) -> list[Incident]:
        """Every incident of every mode."""
        return [incident for mode in self.modes for incident in mode.incidents]


def encode(report: Report) -> str:
    """The text of `report.json`: indented, keys in the order of the data model."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode()


def decode(text: str | bytes) -> Report:
    """Read a report. Raises `ValueError` with one line where the text is not one, or is of a newer major version."""
    try:
        head = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    schema = head.get("schema") if isinstance(head, dict) else None
    if not isinstance(schema, str):
        raise ValueError("not a report of `audit run`: it has no schema version")
    if schema.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise ValueError(f"the report has schema {schema}; this version reads {SCHEMA_VERSION.split('.')[0]}.x")
    try:
        return msgspec.convert(head, Report)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a valid report: {error}") from error


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `report.json` (2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Conformance report of a speculative sampler",
        **msgspec.json.schema(Report),
    }


class Journal:
    """One line per event of the audit, written as it happens; the report is a fold over these lines.

    With no path it is kept in memory alone. Each line is a JSON object with a `kind`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lines: list[dict[str, Any]] = []
        self._file = path.open("a", encoding="utf-8") if path is not None else None

    def write(self, entry: dict[str, Any]) -> None:
        """Append one entry; it is on disk when this returns."""
        self._lines.append(entry)
        if self._file is not None:
            self._file.write(json.dumps(entry, separators=(",", ":"), allow_nan=False) + "\n")
            self._file.flush()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None
