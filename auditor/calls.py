"""The one place that calls an adapter: what it is, what it is asked, and whether its answer is one."""

from __future__ import annotations

import time
import traceback as tracebacks
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.adapter import METHODS, Law, Settings
from auditor.bets.boxes import Precision
from auditor.errors import AdapterUnsuitable, BadAnswer, CallFailed

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_PRIME = 1_103_515_245
_TWO_31 = 2**31


class Seeds:
    """Seeds for an audit's calls and generators for its own draws, from one counter and of different domains.

    The seeds of calls are distinct as long as there are fewer than 2**31 of them: an odd multiplier permutes [0, 2**31).
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.count = 0
        self._offset = int(np.random.SeedSequence([seed, 0xCA11]).generate_state(1)[0]) % _TWO_31

    def next(self) -> int:
        """A seed for a call of the adapter."""
        self.count += 1
        return (self._offset + self.count * _PRIME) % _TWO_31

    def generator(self) -> np.random.Generator:
        """A generator for the audit's own draws (drafts, simulations)."""
        self.count += 1
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence([self.seed, 0xD4AF7, self.count])))


class Subject:
    """An adapter under audit: its attributes with their defaults, and its methods behind checks.

    Raises AdapterUnsuitable where it has no method of the interface or an attribute that makes no sense.
    """

    def __init__(self, adapter: object) -> None:
        self.adapter = adapter
        self.methods = tuple(m for m in METHODS if callable(getattr(adapter, m, None)))
        if not self.methods:
            raise AdapterUnsuitable(f"{type(adapter).__name__} has none of the methods {', '.join(METHODS)}")
        self.rule = self._attribute("rule", "rejection", str)
        self.precision = Precision(
            self._attribute("tolerance", 1e-6, float), self._attribute("resolution", 2.0**-21, float)
        )
        self.settings = tuple(self._attribute("settings", (), tuple))
        self.ragged = self._attribute("ragged", False, bool)
        self.reproducible = self._attribute("reproducible", True, bool)
        self.max_batch = self._attribute("max_batch", None, int)
        self.max_elements = self._attribute("max_elements", 2**24, int)
        if not 0 <= self.precision.tolerance < 1 or not 0 <= self.precision.resolution < 1:
            raise AdapterUnsuitable("tolerance and resolution must lie in [0, 1)")
        self.seconds = 0.0
        self.calls = 0

    def _attribute(self, name: str, default: Any, kind: Callable[[Any], Any]) -> Any:
        value = getattr(self.adapter, name, default)
        if value is None:
            return default
        try:
            return kind(value)
        except (TypeError, ValueError) as error:
            raise AdapterUnsuitable(f"attribute {name} = {value!r} is not a {kind.__name__}") from error

    def rows(self, gamma: int, vocab: int) -> int:
        """Rows that one `verify` call may hold."""
        limit = max(1, int(self.max_elements) // ((gamma + 1) * vocab))
        return min(limit, int(self.max_batch)) if self.max_batch else limit

    # ------------------------------------------------------------------------------------------------------ calls

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        self.calls += 1
        try:
            return getattr(self.adapter, method)(*arguments, **named)
        except CallFailed:
            raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except SystemExit as error:
            raise CallFailed(method, f"SystemExit({error.code})", "") from error
        except BaseException as error:  # pyo3 panics and the like derive from BaseException
            summary = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            raise CallFailed(method, summary, _trimmed(error)) from error
        finally:
            self.seconds += time.perf_counter() - start

    def sample(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> tuple[IntArray, BoolArray | None]:
        """First tokens [n] and, where the adapter says it, which drafts were accepted [n]."""
        answer = self._call("sample", p, q, n, seed)
        accepted = None
        if isinstance(answer, tuple):
            if len(answer) != 2:
                raise BadAnswer("shape", f"sample returned a tuple of {len(answer)}, not tokens or (tokens, accepted)")
            answer, flags = answer
            accepted = _flags(flags, n)
        tokens = _integers(answer, (n,), len(p), "sample")
        if (tokens < 0).any():
            raise BadAnswer("range", f"sample returned the token id {int(tokens.min())}")
        return tokens, accepted

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        """Tokens [B, gamma+1] of a batch, whose form is right (see `_check_rounds`)."""
        named = {"settings": [Settings()] * len(drafts)} if self.settings else {}
        answer = self._call("verify", p, q, drafts.copy(), seed, **named)
        tokens = _integers(answer, (len(drafts), drafts.shape[1] + 1), p.shape[-1], "verify")
        _check_rounds(tokens)
        return tokens

    def verify_case(self, p: FloatArray, q: FloatArray, drafts: IntArray, seeds: Seeds) -> IntArray:
        """`verify` of many rows of one case, in as many calls as the adapter's limits ask for."""
        parts = [
            self.verify(*rows_of(p, q, len(part)), part, seeds.next())
            for part in _blocks(drafts, self.rows(drafts.shape[1], p.shape[-1]))
        ]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def law(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> Law:
        """The exact law of p [B, gamma+1, V], q [B, gamma, V], drafts [B, gamma]; shapes are checked."""
        answer = self._call("law", p, q, drafts.copy())
        batch, gamma, vocab = len(drafts), drafts.shape[1], p.shape[-1]
        want = {"accept": (batch, gamma), "residual": (batch, gamma, vocab), "bonus": (batch, vocab)}
        arrays = {}
        for name, shape in want.items():
            try:
                arrays[name] = np.asarray(getattr(answer, name), np.float64)
            except (AttributeError, TypeError, ValueError) as error:
                raise BadAnswer("type", f"law returned no array {name}: {error}") from error
            if arrays[name].shape != shape:
                raise BadAnswer("shape", f"law returned {name} of shape {arrays[name].shape}, expected {shape}")
            if not np.isfinite(arrays[name]).all():
                raise BadAnswer("nan", f"law returned a {name} that is not finite")
        return Law(**arrays)


def rows_of(p: FloatArray, q: FloatArray, n: int) -> tuple[FloatArray, FloatArray]:
    """Broadcast views [n, ...] of one case's laws."""
    return np.broadcast_to(p, (n, *p.shape)), np.broadcast_to(q, (n, *q.shape))


def _blocks(drafts: IntArray, size: int) -> Iterator[IntArray]:
    for start in range(0, len(drafts), size):
        yield drafts[start : start + size]


def _integers(answer: Any, shape: tuple[int, ...], vocab: int, method: str) -> IntArray:
    if answer is None:
        raise BadAnswer("nothing", f"{method} returned None")
    try:
        array = np.asarray(answer)
    except Exception as error:
        raise BadAnswer("type", f"{method} returned {type(answer).__name__}, which is no array: {error}") from error
    if array.shape != shape:
        raise BadAnswer("shape", f"{method} returned shape {array.shape}, expected {shape}")
    if array.dtype.kind not in "iu":
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise BadAnswer("nan", f"{method} returned NaN among its tokens")
        raise BadAnswer("type", f"{method} returned {array.dtype} tokens, expected integers")
    array = array.astype(np.int64, copy=False)
    if array.size and (array.min() < -1 or array.max() >= vocab):
        worst = int(array.max()) if array.max() >= vocab else int(array.min())
        raise BadAnswer("range", f"{method} returned the token id {worst}; the vocabulary has {vocab}")
    return array


def _flags(flags: Any, n: int) -> BoolArray:
    try:
        array = np.asarray(flags)
    except Exception as error:
        raise BadAnswer("type", f"sample returned acceptances that are no array: {error}") from error
    if array.shape != (n,):
        raise BadAnswer("shape", f"sample returned acceptances of shape {array.shape}, expected {(n,)}")
    if array.dtype.kind in "iu" and not np.isin(array, (0, 1)).all():
        raise BadAnswer("type", "sample returned acceptances that are neither booleans nor 0 and 1")
    if array.dtype.kind not in "iub":
        raise BadAnswer("type", f"sample returned {array.dtype} acceptances, expected booleans")
    return array.astype(bool)


def _check_rounds(tokens: IntArray) -> None:
    """At least one token a row, and -1 at the end alone."""
    if (tokens[:, 0] < 0).any():
        raise BadAnswer("empty", "verify returned a round without a token")
    for i in range(1, tokens.shape[1]):
        gap = (tokens[:, i] >= 0) & (tokens[:, i - 1] < 0)
        if gap.any():
            row = int(np.argmax(gap))
            raise BadAnswer("gap", f"verify returned a token behind a -1: {tokens[row].tolist()}")


def _trimmed(error: BaseException) -> str:
    """The traceback without our own frames at its top."""
    frames = tracebacks.extract_tb(error.__traceback__)
    own = [k for k, f in enumerate(frames) if f.filename == __file__]
    theirs = list(frames)[own[-1] + 1 :] if own else list(frames)
    lines = tracebacks.format_list(theirs) + tracebacks.format_exception_only(error)
    return "".join(lines)[-4000:]
