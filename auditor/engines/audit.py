"""The audit of a whole engine: `generate` on models of known law.

It asks for many generations of a few prompts, with and without settings, and judges each next token given its prefix (see
`sequences`, `wagers`). Before a model or a setting is held against the engine's speculation, its plain sampling is judged by
the same law: where that already differs the law is not the engine's, and nothing is concluded.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from auditor.adapter import FloatArray, Generation, Settings
from auditor.calls import Seeds
from auditor.engines.calls import EngineSubject, Known, known_models
from auditor.engines.checks import Breach, counters, ends, greedy, logprobs
from auditor.engines.draft_wagers import AcceptBook, DraftBook, Judged, SharedBook, drawn, judged
from auditor.engines.requests import CAP, Request, draw_settings, pick_settings, prompt
from auditor.engines.sequences import Disturbed, Places, Sequences, disturbed, read
from auditor.engines.wagers import Book, TokenBook, View, view
from auditor.errors import BadAnswer
from auditor.settings import changed

WEALTH_CLAIMS = ("sequence-law", "settings-law", "acceptance-law", "draft-law", "draft-independence")
EXACT_CLAIMS = ("structure", "greedy", "counters", "logprobs")
ENGINE_CLAIMS = (*EXACT_CLAIMS, *WEALTH_CLAIMS)

SIGHTING = 60 * float(np.log(2.0))
"""What one sighting of something that cannot happen is worth, in nats."""
CONTROL = 1000
"""Plain generations that a model or a setting is checked with first."""
COMBINATIONS = 6


@dataclass(frozen=True)
class Visit:
    """One request, carried out: what came back and what it said against each claim, in nats."""

    index: int
    request: Request
    generations: list[Generation]
    batch: Sequences
    evidence: dict[str, float]
    seconds: float
    views: list[View]


@dataclass
class Totals:
    """Counts over all sampled visits to a model, or to all."""

    generations: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    reached: int = 0
    kept: int = 0
    rate: float = 0.0
    """Sum of the exact acceptance rates of the reached drafts."""


@dataclass(frozen=True)
class Limits:
    """The budget and the thresholds of the claims that are judged by wealth, in nats."""

    thresholds: Mapping[str, float]
    seed: int = 0
    max_seconds: float = 150.0
    max_generations: int = 1_000_000


@dataclass
class EngineState:
    """Everything that the audit of one mode has seen."""

    books: dict[str, Book] = field(default_factory=dict)
    breaches: dict[str, list[tuple[Breach, Request]]] = field(default_factory=dict)
    violated: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Violated claims: (generations, seconds) at which each was."""
    events: Counter[str] = field(default_factory=Counter)
    loudest: dict[str, tuple[float, Request]] = field(default_factory=dict)
    totals: dict[str, Totals] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Settings that are not judged, by what they are, and why."""
    plain_fault: str = ""
    untrusted: bool = False
    """The counters contradict the tokens: places are no longer read from them."""
    log: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    speed: float = 50.0
    generations: int = 0


Watch = Callable[[Visit], None]
Models = Callable[[EngineSubject, Path, int], list[Known]]


class EngineAudit:
    """One mode of an adapter with `generate`.

    `watch` is told of every visit; `models` makes the models of known law. `run` goes on until the budget is used up, or
    both `sequence-law` and `settings-law` are decided against the engine; the result is in `state`.
    """

    def __init__(
        self,
        subject: EngineSubject,
        limits: Limits,
        watch: Watch = lambda visit: None,
        models: Models = known_models,
    ) -> None:
        self.subject, self.limits, self.watch, self._models = subject, limits, watch, models
        self.state = EngineState()
        self.seeds = Seeds(limits.seed)
        self.rng = np.random.default_rng((limits.seed, 7))
        lengths = (subject.draft_length,) if subject.draft_length else (1, 2, 3, 4, 5, 7)
        # The settings' book needs no draft lengths of its own where rounds are reported.
        self.state.books = {
            "sequence-law": TokenBook(lengths),
            "settings-law": TokenBook(lengths),
            "acceptance-law": AcceptBook(32),
            "draft-law": DraftBook(),
            "draft-independence": SharedBook(),
        }
        self.started = time.perf_counter()
        self.known: list[Known] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._visits = 0
        self._sweeps = 0
        """Sweeps over the settings that have begun."""
        self._trusted: dict[tuple[int, Settings], bool] = {}

    # --------------------------------------------------------------------------------------------------- budget

    @property
    def seconds(self) -> float:
        """Seconds since the audit began."""
        return time.perf_counter() - self.started

    @property
    def spent(self) -> bool:
        """Whether the budget is used up; a sixth is kept for findings once something is violated."""
        share = 5 / 6 if self.state.violated else 1.0
        return self.seconds >= share * self.limits.max_seconds or (
            self.state.generations >= self.limits.max_generations
        )

    def size(self, seconds: float) -> int:
        """Generations that take about so long, at the engine's measured speed; at most a twelfth of the budget."""
        most = int(np.clip(self.limits.max_generations // 12, 16, 4000))
        return int(np.clip(self.state.speed * seconds, 16, most))

    # -------------------------------------------------------------------------------------------------- running

    def prepare(self) -> None:
        """Make the models of known law; `run` does it first."""
        self._directory = tempfile.TemporaryDirectory(prefix="audit-")
        self.known = self._models(self.subject, Path(self._directory.name), self.limits.seed)

    def run(self) -> EngineState:
        """Carry the audit out. Raises CallFailed, BadAnswer: the engine's answer is not one."""
        self.prepare()
        for greedy_request in self._greedy():
            self.visit(greedy_request, 8)
        neutral, settled = self._neutral(), self._settled()
        while not self.spent and not self._all_decided():
            # One visit with settings for each without; the settings share their time among many laws, so a first sweep is
            # quick. A source that is empty has nothing that could be judged.
            asked = [(next(neutral, None), 2.0), (next(settled, None), 1.0 if self._sweeps < 2 else 2.0)]
            if not any(request for request, _ in asked):
                break
            for request, seconds in asked:
                if request is not None and not self.spent:
                    self.visit(request, self.size(seconds))
        return self.state

    def close(self) -> None:
        """Remove the checkpoints."""
        if self._directory is not None:
            self._directory.cleanup()

    def _all_decided(self) -> bool:
        return {"sequence-law", "settings-law"} <= set(self.state.violated)

    def _greedy(self) -> Iterator[Request]:
        for index, known in enumerate(self.known):
            for turn in range(3):
                settings = replace(self._focused(turn), temperature=0.0)
                yield Request(index, prompt(known.model.vocab, self.rng), 12, settings)

    def _neutral(self) -> Iterator[Request]:
        """Without settings, and every fifth time with a short cap; a prompt is used several times."""
        turn = 0
        while True:
            index = turn % len(self.known)
            cap = (1, 2, 3)[turn // 7 % 3] if turn % 7 == 6 else CAP
            request = Request(index, prompt(self.known[index].model.vocab, self.rng), cap, Settings())
            if self._follows(request):
                yield request
            elif self.state.plain_fault and all(
                not self._trusted.get((k, Settings()), True) for k in range(len(self.known))
            ):
                return
            turn += 1

    def _settled(self) -> Iterator[Request]:
        """With settings: each alone, then combinations, again and again with other prompts and models."""
        turn = 0
        while True:
            vocab = self.known[0].model.vocab
            picked = pick_settings(self.subject.settings, vocab, COMBINATIONS, self.limits.seed + 1000 * turn)
            if self.subject.focus:
                picked = [one for k, other in enumerate(picked) for one in (self._focused(turn + k), other)]
            any_left = False
            self._sweeps += 1
            for offset, settings in enumerate(picked):
                index = self._model_for(settings, turn + offset)
                request = Request(index, prompt(self.known[index].model.vocab, self.rng), CAP, settings)
                if self._follows(request):
                    any_left = True
                    yield request
            if not any_left:
                return
            turn += 1

    def _focused(self, turn: int) -> Settings:
        """One of the settings that the mode is about, alone; none where it is about none."""
        focus = self.subject.focus
        if not focus:
            return Settings()
        return draw_settings([focus[turn % len(focus)]], self.known[0].model.vocab, self.limits.seed + turn)

    def _model_for(self, settings: Settings, turn: int) -> int:
        """The models take turns; guidance compares two contexts, which are the same to a Markov chain."""
        seeing = [k for k, one in enumerate(self.known) if one.kind != "table" or settings.guidance_scale == 1.0]
        return seeing[turn % len(seeing)] if seeing else turn % len(self.known)

    def _follows(self, request: Request) -> bool:
        """Whether the engine's plain sampling follows the law of a request; judged once for each model and setting."""
        if not self.subject.has_plain:
            return True
        bare = replace(request, settings=Settings())
        for asked in (bare, request):
            key = (asked.model, asked.settings)
            if key not in self._trusted:
                self._trusted[key] = self._plain(asked)
            if not self._trusted[key]:
                return False
        return True

    def _plain(self, request: Request) -> bool:
        known = self.known[request.model]
        made = self.subject.plain(
            known.model, [request.prompt] * CONTROL, request.cap, request.settings, self.seeds.next()
        )
        batch = self._read(made, request, draft=False)
        wrong = list(ends(made, batch, "plain"))
        book = TokenBook((1,))
        precision = self.subject.precision
        half = CONTROL // 2
        for part in (slice(0, half), slice(half, None)):
            # The second half is judged by what was learned from the first.
            cut = _rows(batch, part)
            book.judge([view(cut, 1)], known.model.key, precision.tolerance, precision.resolution)
        limit = self.limits.thresholds.get("sequence-law", 20.0)
        if not wrong and book.evidence < limit:
            return True
        why = wrong[0].words if wrong else f"{book.evidence:.0f} nats in {CONTROL} plain generations"
        name = ", ".join(changed(request.settings)) or "no settings"
        self.state.skipped[name] = f"plain sampling without speculation does not follow this law ({why})"
        if not changed(request.settings):
            self.state.plain_fault = self.state.skipped[name]
        return False

    # ---------------------------------------------------------------------------------------------------- visits

    def _read(self, generations: list[Generation], request: Request, draft: bool = True) -> Sequences:
        known = self.known[request.model]
        shown = generations
        if self.state.untrusted:
            shown = [Generation(g.tokens, logprobs=g.logprobs) for g in generations]
        return read(
            shown,
            np.array(request.prompt),
            request.settings,
            request.cap,
            self.subject.settings,
            known.target,
            known.draft if draft else None,
        )

    def ask(self, request: Request, count: int) -> list[Generation]:
        """`count` generations of a request."""
        known = self.known[request.model]
        start = time.perf_counter()
        made = self.subject.generate(
            known.model, [request.prompt] * count, request.cap, request.settings, self.seeds.next()
        )
        took = max(time.perf_counter() - start, 1e-6)
        self.state.speed = 0.5 * self.state.speed + 0.5 * count / took
        self.state.generations += count
        return made

    def look(self, generations: list[Generation], request: Request) -> tuple[Sequences, list[View]]:
        """The sequences of a request with the views that bets are made on."""
        known = self.known[request.model]
        batch = self._read(generations, request)
        batch = _with_said(batch, said(batch, generations))
        moved: Disturbed | None = None
        if known.kind == "attentive" and not self.state.untrusted:
            moved = disturbed(batch, generations, known.target, self.subject.settings)
        book = self.state.books["sequence-law"]
        assert isinstance(book, TokenBook)
        lengths = book.draft_lengths
        views = [
            view(batch, length, None if moved is None else moved.stale, None if moved is None else moved.shifted)
            for length in (lengths if not batch.places.known else lengths[:1])
        ]
        # Where rounds are reported the place does not depend on the assumed length.
        return batch, views if len(views) == len(lengths) else views * len(lengths)

    def visit(self, request: Request, count: int) -> Visit:
        """Ask, judge, and remember."""
        start = time.perf_counter()
        try:
            made = self.ask(request, count)
        except BadAnswer as error:
            self._breach([Breach("structure", error.kind, f"answers with something else: {error}", 0)], request)
            self._remember(request, {"structure": SIGHTING})
            raise
        self.state.events["structure"] += count
        batch, views = self.look(made, request)
        claim = claim_of(request.settings)
        found = [*counters(made), *logprobs(made, batch, self.subject.precision.tolerance)]
        if request.settings.temperature == 0:
            found += [*ends(made, batch, "greedy"), *greedy(made, batch)]
            self.state.events["greedy"] += int(batch.live.sum())
        else:
            found += ends(made, batch, claim)
        if any(g.accepted is not None for g in made):
            self.state.events["counters"] += count
        if any(g.logprobs is not None for g in made):
            self.state.events["logprobs"] += int(batch.lengths.sum())
        before = {name: self.evidence(name) for name in ENGINE_CLAIMS}
        self._breach(found, request)
        if any(b.claim == "counters" for b in found):
            # Whether a row's places can be believed was decided by looking at it, so this batch takes no bets.
            self.state.untrusted = True
        elif request.settings.temperature > 0:
            self._judge(request, made, batch, views, claim)
        evidence = {name: self.evidence(name) - before[name] for name in ENGINE_CLAIMS}
        self._remember(request, evidence)
        done = Visit(self._visits, request, made, batch, evidence, time.perf_counter() - start, views)
        self._visits += 1
        self.watch(done)
        return done

    def _judge(self, request: Request, made: list[Generation], batch: Sequences, views: list[View], claim: str) -> None:
        state, precision = self.state, self.subject.precision
        known = self.known[request.model]
        if claim not in state.violated:
            book = state.books[claim]
            assert isinstance(book, TokenBook)
            book.judge(views, known.model.key, precision.tolerance, precision.resolution)
            state.events[claim] += len(views[0].y)
        if state.untrusted:
            return
        stated = said(batch, made)
        events = judged(batch, self.subject.rule, stated, precision.tolerance, precision.resolution)
        self._count(request, made, batch, events)
        if events is not None:
            accept, shared = state.books["acceptance-law"], state.books["draft-independence"]
            assert isinstance(accept, AcceptBook)
            assert isinstance(shared, SharedBook)
            if "acceptance-law" not in state.violated:
                accept.judge(events, self.subject.rule)
                state.events["acceptance-law"] += len(events.rate)
            if events.shown and self.subject.rule == "rejection" and "draft-independence" not in state.violated:
                shared.judge(events)
                state.events["draft-independence"] += len(events.rate)
        offered = drawn(batch, made)
        if offered is not None and self.subject.rule == "rejection" and "draft-law" not in state.violated:
            drafts = state.books["draft-law"]
            assert isinstance(drafts, DraftBook)
            drafts.judge(offered, known.model.key, precision.tolerance, precision.resolution)
            state.events["draft-law"] += len(offered.x)

    def _count(
        self,
        request: Request,
        made: list[Generation],
        batch: Sequences,
        events: Judged | None,
    ) -> None:
        """Totals of the visits without settings."""
        if changed(request.settings):
            return
        totals = self.state.totals.setdefault(self.known[request.model].model.key, Totals())
        totals.generations += len(made)
        totals.tokens += int(batch.lengths.sum())
        for generation in made:
            if generation.drafted is not None and generation.accepted is not None:
                totals.rounds += len(generation.drafted)
                totals.drafted += int(generation.drafted.sum())
                totals.accepted += int(generation.accepted.sum())
        if events is not None and events.shown:
            totals.reached += len(events.rate)
            totals.kept += int(events.kept.sum())
            totals.rate += float(events.rate.sum())

    # --------------------------------------------------------------------------------------------------- judging

    def evidence(self, claim: str) -> float:
        """Nats against a claim: its book's wealth and what it was seen to contradict, half of the weight each."""
        sightings = len(self.state.breaches.get(claim, ())) * SIGHTING
        book = self.state.books.get(claim)
        if book is None:
            return sightings
        return float(np.logaddexp(np.log(0.5) + book.evidence, np.log(0.5) + sightings))

    def threshold(self, claim: str) -> float:
        """Nats at which a claim is violated; one sighting is enough for the exact ones."""
        return SIGHTING if claim in EXACT_CLAIMS else self.limits.thresholds[claim]

    def _breach(self, found: list[Breach], request: Request) -> None:
        for breach in found:
            self.state.breaches.setdefault(breach.claim, []).append((breach, request))

    def _remember(self, request: Request, evidence: Mapping[str, float]) -> None:
        state = self.state
        for claim, value in evidence.items():
            if value > state.loudest.get(claim, (-np.inf, request))[0]:
                state.loudest[claim] = (value, request)
            if value:
                state.log.setdefault(claim, []).append((self._visits, value))
            decided = self.evidence(claim) >= self.threshold(claim) if claim in self._judged() else False
            if decided and claim not in state.violated:
                state.violated[claim] = (state.generations, self.seconds)

    def _judged(self) -> set[str]:
        return {*EXACT_CLAIMS, *self.limits.thresholds}


def claim_of(settings: Settings) -> str:
    """The claim that a request bears on."""
    return "settings-law" if changed(settings) else "sequence-law"


def said(batch: Sequences, generations: list[Generation]) -> FloatArray | None:
    """[N, T, V]: the law reported for the draft of each place, zeros where none is; None where no law is reported."""
    if not batch.places.known or not any(g.draft_probs is not None for g in generations):
        return None
    out = np.zeros_like(batch.p)
    places = batch.places
    for row, generation in enumerate(generations):
        if generation.draft_probs is None:
            continue
        here = np.flatnonzero(places.drafted[row] == 1)
        out[row, here] = generation.draft_probs[places.round[row, here], places.slot[row, here]]
    return out


def _with_said(batch: Sequences, stated: FloatArray | None) -> Sequences:
    """The batch with the reported law as q wherever one is reported; elsewhere the draft model's, or the target's."""
    if stated is None:
        return batch
    there = stated.sum(-1) > 0.5
    q = np.where(there[..., None], stated, batch.p if batch.q is None else batch.q)
    return replace(batch, q=q)


def _rows(batch: Sequences, part: slice) -> Sequences:
    """Some rows of a batch."""
    places = Places(*(getattr(batch.places, name)[part] for name in ("slot", "drafted", "accepted", "draft", "round")))
    return replace(
        batch,
        tokens=batch.tokens[part],
        lengths=batch.lengths[part],
        live=batch.live[part],
        p=batch.p[part],
        bare=batch.bare[part],
        q=None if batch.q is None else batch.q[part],
        bare_q=None if batch.bare_q is None else batch.bare_q[part],
        places=places,
    )
