"""A speculative engine in NumPy, right or with one planted fault: what the audit of whole engines is tested on.

It keeps a cache as engines do: the tokens and positions that later tokens attend to, which a fault may let differ from the
sequence. Rows of a batch go through their rounds together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from auditor.adapter import BoolArray, FloatArray, Generation, IntArray, Model, Settings
from auditor.oracle import Llama, read_model, softmax
from auditor.settings import TRANSFORMS, apply

FAULTS = (
    "cache-not-rolled-back",
    "position-off-by-one",
    "temperature-on-target-only",
    "temperature-on-draft-only",
    "top-p-on-bonus-only",
    "eos-in-draft-ignored",
    "beyond-cap",
    "bonus-never-emitted",
    "argmax-drafts",
    "shared-randomness",
    "counts-past-eos",
)


class MiniatureEngine:
    """`generate` by speculative sampling on checkpoints of known law, `plain` without.

    `shows` says what it reports of its rounds: "drafts", "counts" or "nothing".
    """

    tolerance = 1e-6
    settings = (*(name for name in TRANSFORMS if name != "guidance_scale"), "eos", "stop")

    def __init__(self, fault: str = "", shows: str = "drafts", draft_length: int = 3) -> None:
        assert fault in ("", *FAULTS)
        self.fault, self.shows, self.draft_length = fault, shows, draft_length
        self._models: dict[str, tuple[Llama, Llama]] = {}

    def generate(
        self, model: Model, prompts: Sequence[Sequence[int]], max_new_tokens: int, settings: Settings, seed: int
    ) -> list[Generation]:
        """One generation for each prompt; the prompts have one length."""
        return _Run(self, self._load(model), prompts, max_new_tokens, settings, seed, self.draft_length).finish()

    def plain(
        self, model: Model, prompts: Sequence[Sequence[int]], max_new_tokens: int, settings: Settings, seed: int
    ) -> list[Generation]:
        """The same engine without drafts, and without its fault."""
        right = MiniatureEngine(shows="nothing")
        return _Run(right, self._load(model), prompts, max_new_tokens, settings, seed, 0).finish()

    def _load(self, model: Model) -> tuple[Llama, Llama]:
        if model.key not in self._models:
            self._models[model.key] = (read_model(Path(model.target)), read_model(Path(model.draft)))
        return self._models[model.key]


class _Run:
    def __init__(
        self,
        engine: MiniatureEngine,
        models: tuple[Llama, Llama],
        prompts: Sequence[Sequence[int]],
        cap: int,
        settings: Settings,
        seed: int,
        draft_length: int,
    ) -> None:
        self.engine, self.fault = engine, engine.fault
        self.target, self.draft = models
        self.cap, self.settings, self.gamma = cap, settings, draft_length
        self.rng = np.random.default_rng(seed)
        start = np.array(prompts)
        self.count, self.start = start.shape
        room = self.start + 4 * (cap + draft_length + 2)
        self.text = np.zeros((self.count, room), np.int64)
        self.text[:, : self.start] = start
        self.length = np.full(self.count, self.start)
        # What the target attends to: the sequence itself unless a fault says otherwise.
        self.cache = self.text.copy()
        self.places = np.broadcast_to(np.arange(room), self.text.shape).copy()
        self.cached = self.length.copy()
        self.done = np.zeros(self.count, np.bool_)
        self.rounds: list[list[tuple[int, int, IntArray, FloatArray]]] = [[] for _ in range(self.count)]

    # ------------------------------------------------------------------------------------------------------ laws

    def _under(self, logits: FloatArray, rows: IntArray, extra: IntArray, settings: Settings) -> FloatArray:
        """Laws [n, V] under settings, after the rows' texts and `extra` [n, k] behind them."""
        out = np.empty_like(logits)
        lengths = self.length[rows]
        for length in np.unique(lengths):
            same = lengths == length
            context = np.concatenate([self.text[rows[same], :length], extra[same]], 1)
            changed, _ = apply(logits[same], context, self.start, settings)
            out[same] = softmax(changed)
        if settings.temperature == 0:
            return np.eye(out.shape[-1])[out.argmax(-1)]
        return out

    def _draft_logits(self, rows: IntArray, drafts: IntArray) -> FloatArray:
        wide = self.text[rows].copy()
        for j in range(drafts.shape[1]):
            wide[np.arange(len(rows)), self.length[rows] + j] = drafts[:, j]
        last = self.length[rows] + drafts.shape[1] - 1
        logits = self.draft.logits(wide[:, : last.max() + 1])
        return logits[np.arange(len(rows)), last]

    def _target_logits(self, rows: IntArray, drafts: IntArray) -> FloatArray:
        """[n, k+1, V]: the verification pass over the last token and k drafts, through the cache."""
        width = drafts.shape[1]
        cache, places = self.cache[rows].copy(), self.places[rows].copy()
        at = self.cached[rows]
        for j in range(width):
            cache[np.arange(len(rows)), at + j] = drafts[:, j]
            places[np.arange(len(rows)), at + j] = places[np.arange(len(rows)), at - 1] + j + 1
        most = int(at.max()) + width
        logits = self.target.logits(cache[:, :most], places[:, :most])
        index = at[:, None] - 1 + np.arange(width + 1)
        return np.take_along_axis(logits, index[..., None], 1)

    # ---------------------------------------------------------------------------------------------------- rounds

    def finish(self) -> list[Generation]:
        while not self.done.all():
            self._round(np.flatnonzero(~self.done))
        return [self._generation(row) for row in range(self.count)]

    def _round(self, rows: IntArray) -> None:
        left = self.start + self.cap - self.length[rows]
        width = self.gamma if self.fault == "beyond-cap" else int(min(self.gamma, left.max() - 1))
        # Rows near the cap draft less: their surplus drafts are made and not used.
        usable = np.full(len(rows), width) if self.fault == "beyond-cap" else np.minimum(width, left - 1)
        bare, settings = Settings(), self.settings
        drafts = np.zeros((len(rows), 0), np.int64)
        q, uniforms = [], []
        for _ in range(width):
            logits = self._draft_logits(rows, drafts)
            law = self._under(logits, rows, drafts, settings)
            drawn_from = self._under(logits, rows, drafts, bare) if self.fault == "temperature-on-target-only" else law
            u = self.rng.random(len(rows))
            x = law.argmax(-1) if self.fault == "argmax-drafts" else _inverse(drawn_from, u)
            q.append(law)
            uniforms.append(u)
            drafts = np.concatenate([drafts, x[:, None]], 1)
        logits = self._target_logits(rows, drafts)
        alive = np.ones(len(rows), np.bool_)
        kept = np.zeros(len(rows), np.int64)
        own = np.full(len(rows), -1)
        for i in range(width + 1):
            p = self._under(logits[:, i], rows, drafts[:, :i], self._verifying(i == width))
            at_end = alive & (usable == i)
            ending = self._verifying(True)
            p_end = p if i == width or not at_end.any() else self._under(logits[:, i], rows, drafts[:, :i], ending)
            own[at_end] = _inverse(p_end[at_end], self.rng.random(int(at_end.sum())))
            alive &= ~at_end
            if i == width:
                break
            x = drafts[:, i]
            n = np.arange(len(rows))
            a = p[n, x] / np.maximum(q[i][n, x], 1e-300)
            u = uniforms[i] if self.fault == "shared-randomness" else self.rng.random(len(rows))
            accept = alive & (u < a)
            refused = alive & ~accept
            residual = np.maximum(p - q[i], 0.0)
            total = residual.sum(-1, keepdims=True)
            residual = np.where(total > 0, residual / np.where(total > 0, total, 1.0), p)
            own[refused] = _inverse(residual[refused], self.rng.random(int(refused.sum())))
            kept[accept] += 1
            alive = accept
        for k, row in enumerate(rows):
            offered = drafts[k, : usable[k]]
            self._emit(int(row), offered, int(kept[k]), int(own[k]), np.array([law[k] for law in q])[: usable[k]])

    def _verifying(self, bonus: bool) -> Settings:
        """The settings of a verified place, or of the bonus token."""
        if self.fault == "temperature-on-draft-only":
            return Settings(temperature=min(1.0, self.settings.temperature) if self.settings.temperature == 0 else 1.0)
        if self.fault == "top-p-on-bonus-only" and not bonus:
            return Settings() if self.settings.temperature else Settings(temperature=0.0)
        return self.settings

    def _emit(self, row: int, drafts: IntArray, kept: int, own: int, laws: FloatArray) -> None:
        emitted = [*drafts[:kept].tolist(), own]
        if self.fault == "bonus-never-emitted" and len(drafts) and kept == len(drafts):
            emitted.pop()
        new = self.text[row, self.start : self.length[row]].tolist()
        counted = kept
        for k in range(len(emitted)):
            if self._ends([*new, *emitted[: k + 1]], in_draft=k < kept):
                emitted = emitted[: k + 1]
                self.done[row] = True
                if self.fault != "counts-past-eos":
                    # The draft that ends the sequence is the round's own last token.
                    counted = min(kept, k)
                break
        if len(emitted) + len(new) >= self.cap:
            self.done[row] = True
        self.rounds[row].append((len(drafts), counted, drafts, laws))
        at = self.length[row]
        self.text[row, at : at + len(emitted)] = emitted
        self.length[row] += len(emitted)
        self._cache(row, drafts, kept, emitted)

    def _ends(self, new: list[int], in_draft: bool) -> bool:
        settings = self.settings
        if (
            settings.eos is not None
            and new[-1] == settings.eos
            and not (self.fault == "eos-in-draft-ignored" and in_draft)
        ):
            return True
        return any(tuple(new[-len(stop) :]) == stop for stop in settings.stop)

    def _cache(self, row: int, drafts: IntArray, kept: int, emitted: list[int]) -> None:
        refused = drafts[kept:].tolist() if kept < len(drafts) else []
        added = emitted
        if self.fault == "cache-not-rolled-back" and refused:
            added = [*drafts.tolist(), emitted[-1]]
        at = self.cached[row]
        self.cache[row, at : at + len(added)] = added
        first = int(self.places[row, at - 1]) + 1
        if self.fault == "position-off-by-one" and refused and first == at:
            # The token that replaces the refused draft, and all behind it, stand one too far.
            self.places[row, at : at + len(added) - 1] = first + np.arange(len(added) - 1)
            self.places[row, at + len(added) - 1] = first + len(added)
        else:
            self.places[row, at : at + len(added)] = first + np.arange(len(added))
        self.cached[row] += len(added)

    def _generation(self, row: int) -> Generation:
        tokens = self.text[row, self.start : self.length[row]].copy()
        rounds = self.rounds[row]
        if self.engine.shows == "nothing":
            return Generation(tokens)
        drafted, accepted = np.array([r[0] for r in rounds]), np.array([r[1] for r in rounds])
        if self.engine.shows == "counts":
            return Generation(tokens, drafted, accepted)
        widest = int(drafted.max())
        drafts = np.full((len(rounds), widest), -1)
        laws = np.zeros((len(rounds), widest, self.target.shape.vocab))
        for k, (_, _, x, law) in enumerate(rounds):
            drafts[k, : len(x)] = x
            if len(x):
                laws[k, : len(x)] = law
        return Generation(tokens, drafted, accepted, drafts=drafts, draft_probs=laws)


def _inverse(law: FloatArray, u: FloatArray) -> IntArray:
    """One token a row [n] by inverting the CDF of law [n, V] at u [n]."""
    cdf = np.cumsum(law, -1)
    below: BoolArray = cdf <= (u * cdf[:, -1])[:, None]
    return np.minimum(below.sum(-1), law.shape[-1] - 1)
