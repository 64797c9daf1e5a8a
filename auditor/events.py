"""What an audit says while it runs. Each output format is one small handler of these values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from auditor.results import AdapterInfo, CaseResult, Finding, Incident, Report


@dataclass(frozen=True)
class Started:
    """The adapter is built and the audit begins."""

    adapter: AdapterInfo
    modes: tuple[str, ...]
    methods: tuple[str, ...]
    rule: str
    tolerance: float
    alpha: float
    seed: int
    max_rounds: int
    max_seconds: float
    claims: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    """(claim, reason) of the claims that the adapter cannot show."""


@dataclass(frozen=True)
class Phase:
    """A new part of the audit of a mode: "explicit cases", "generated cases", "focus", "shrinking", "proof by counting"."""

    mode: str
    name: str


@dataclass(frozen=True)
class CaseDone:
    """One visit to a case is over."""

    mode: str
    result: CaseResult
    rounds: int
    """Rounds of the whole audit so far."""
    seconds: float
    strongest: tuple[str, float, float]
    """The claim with the most evidence against it: (claim, nats, threshold in nats)."""


@dataclass(frozen=True)
class ClaimViolated:
    """A claim's wealth reached its threshold; its finding follows when the audit has diagnosed and shrunk it."""

    mode: str
    claim: str
    evidence: float
    threshold: float
    rounds: int
    seconds: float
    guess: str
    """The words of the explanation that leads so far."""


@dataclass(frozen=True)
class FindingReady:
    """A violated claim, diagnosed, shrunk and confirmed."""

    finding: Finding


@dataclass(frozen=True)
class IncidentSeen:
    """The adapter raised, crashed or hung."""

    incident: Incident


@dataclass(frozen=True)
class Finished:
    """The audit is over, for whatever reason; the report says which."""

    report: Report


Event = Started | Phase | CaseDone | ClaimViolated | FindingReady | IncidentSeen | Finished
Emit = Callable[[Event], None]
