"""An adapter in a process of its own: `start` gives an object with the adapter's interface, whose methods are calls there.

The adapter may need another interpreter, may crash, hang, print, or take all the memory there is; the audit goes on. Its
process is started by `auditor.process.parent` under a guardian (`auditor.process.guardian`), runs `auditor/process/child.py`, and
speaks the protocol of `auditor.process.wire`. A failed call raises `auditor.errors.CallFailed` or a subclass of it; where the process
is gone (`alive` is false), the next call, or `restart`, makes a fresh one with the same adapter, mode and options.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from auditor import errors
from auditor.catalog import Loaded
from auditor.errors import (
    AuditError,
    CallFailed,
    WorkerCrashed,
    WorkerFailed,
    WorkerGarbled,
    WorkerHung,
    WorkerUnavailable,
)
from auditor.process import wire
from auditor.process.parent import WorkerProcess


@dataclass(frozen=True)
class Place:
    """Where an adapter runs and within which limits.

    python: an interpreter (3.11 or newer), this one by default; it needs NumPy and the engine, nothing of ours. Times in
    seconds: of a call, and of the start, which is loading and building. memory_limit in bytes, of all processes of the
    adapter together (Linux). log: a file to which everything that the adapter prints is appended.
    """

    python: str | None = None
    call_timeout: float = 120.0
    start_timeout: float = 300.0
    memory_limit: int | None = None
    log: Path | None = None


class RemoteAdapter:
    """An adapter whose methods run in another process; made by `start`.

    It has the adapter's public methods, those of the interface and its own, and its public attributes where they are plain
    values, as they were when it was built. `start` and what this class itself defines take precedence.
    """

    def __init__(self, build: Mapping[str, Any], place: Place) -> None:
        self.place = place
        self.call_timeout, self.start_timeout = place.call_timeout, place.start_timeout
        self.deadline: float | None = None
        """A time of `time.monotonic` that no call and no restart outlasts: the audit's own end."""
        self.starts = 0
        """How often a process was started."""
        self.versions: dict[str, str] = {}
        """Of the interpreter and NumPy there."""
        self._theirs: dict[str, Any] = {}
        self._build = dict(build)
        self._process: WorkerProcess | None = None
        self._closed = False
        self.restart()

    @property
    def alive(self) -> bool:
        """Whether there is a process; after a failure that ended it, the next call starts another."""
        return self._process is not None and self._process.alive

    def restart(self) -> None:
        """End the process, if there is one, and build the adapter in a fresh one.

        Raises `WorkerUnavailable` where the process cannot be started, and the errors of a build (`AdapterNotFound`,
        `AdapterBroken`, `EngineMissing`, `AdapterUnsuitable`) as they come from there.
        """
        self._end()
        self._closed = False
        self.starts += 1
        self._process = _launch(self.place)
        try:
            answer = self._exchange("the start", self._build, self.start_timeout, "--start-timeout")
            _check_start(answer, "ready")
        except WorkerFailed as failure:
            self._end()
            raise _unavailable(failure) from failure
        except BaseException:
            self._end()
            raise
        self.versions = answer["versions"]
        self._theirs = {**answer["attributes"], **{name: self._method(name) for name in answer["methods"]}}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_theirs"][name]
        except KeyError:
            raise AttributeError(f"the adapter has no attribute {name!r}") from None

    def close(self) -> None:
        """End the process and everything that it started. A call after it raises `WorkerCrashed`; closing twice is no error."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def __enter__(self) -> RemoteAdapter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _method(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return self._call(name, arguments, keywords)

        call.__name__ = name
        return call

    def _call(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._closed:
            raise WorkerCrashed(method, "its process was closed", "")
        if not self.alive:
            try:
                self.restart()
            except AuditError as error:
                raise WorkerCrashed(method, f"its process could not be started again: {error}", "") from error
        request = {"kind": "call", "method": method, "arguments": list(arguments), "keywords": keywords}
        answer = self._exchange(method, request, self.call_timeout, "--call-timeout")
        kind = answer.get("kind")
        if kind == "answer":
            return answer.get("value")
        if kind == "raised":
            raise CallFailed(method, str(answer.get("summary")), str(answer.get("traceback")))
        if kind == "garbled":
            raise WorkerGarbled(method, f"answered {answer.get('summary')}", "", alive=True)
        assert self._process is not None
        self._process.kill()
        raise WorkerGarbled(method, f"its message is no answer: {wire.describe(answer)}", "")

    def _exchange(self, method: str, request: dict[str, Any], timeout: float, limit: str) -> dict[str, Any]:
        assert self._process is not None
        end, over = time.monotonic() + timeout, False
        if self.deadline is not None and self.deadline < end:
            end, over, limit = self.deadline, True, "the audit's time is up"
        try:
            return self._process.exchange(method, request, end, limit)
        except WorkerHung as failure:
            failure.audit_over = over
            raise


def start(
    source: str,
    mode: str | None,
    options: Mapping[str, Any],
    *,
    rule: str | None = None,
    tolerance: float | None = None,
    python: str | None = None,
    call_timeout: float = Place.call_timeout,
    start_timeout: float = Place.start_timeout,
    memory_limit: int | None = None,
    log: Path | None = None,
) -> RemoteAdapter:
    """Build an adapter in a process of its own.

    source, options, rule and tolerance as in `auditor.catalog.load`, mode as in `Loaded.build`, the others as in `Place`.
    Raises as `RemoteAdapter.restart` does.
    """
    place = Place(python, call_timeout, start_timeout, memory_limit, log)
    return RemoteAdapter(_request("build", source, options, rule, tolerance) | {"mode": mode}, place)


@contextmanager
def loaded_apart(
    source: str,
    *,
    options: Mapping[str, str],
    rule: str | None = None,
    tolerance: float | None = None,
    place: Place | None = None,
) -> Iterator[Loaded]:
    """`auditor.catalog.load` in another process: not even the adapter's file is imported in this one.

    Each mode is built in a fresh process, which ends when the next one is built and at the end of the context. Raises as
    `RemoteAdapter.restart` does.
    """
    place = place or Place()
    process = _launch(place)
    try:
        request = _request("load", source, options, rule, tolerance)
        found = process.exchange("the start", request, time.monotonic() + place.start_timeout, "--start-timeout")
        _check_start(found, "loaded")
    except WorkerFailed as failure:
        raise _unavailable(failure) from failure
    finally:
        process.close()
    current: list[RemoteAdapter] = []

    def build(mode: str | None) -> RemoteAdapter:
        while current:
            current.pop().close()
        request = _request("build", source, options, rule, tolerance) | {"mode": mode}
        current.append(RemoteAdapter(request, place))
        return current[0]

    try:
        yield Loaded(found["name"], source, found["summary"], dict(options), found["engine"], found["modes"], build)
    finally:
        for adapter in current:
            adapter.close()


def _request(
    kind: str, source: str, options: Mapping[str, Any], rule: str | None, tolerance: float | None
) -> dict[str, Any]:
    return {"kind": kind, "source": source, "options": dict(options), "rule": rule, "tolerance": tolerance}


def _launch(place: Place) -> WorkerProcess:
    python = place.python or sys.executable
    if place.memory_limit is not None and not os.path.isdir("/proc"):
        raise WorkerUnavailable("a memory limit needs /proc, which this system does not have")
    try:
        return WorkerProcess(python, place.log, place.memory_limit)
    except OSError as error:
        raise WorkerUnavailable(f"{error.filename or python} cannot be started: {error.strerror or error}") from error


def _check_start(answer: Mapping[str, Any], kind: str) -> None:
    if answer.get("kind") == "refused":
        raise getattr(errors, str(answer["error"]), AuditError)(answer["message"])
    if answer.get("kind") != kind:
        raise WorkerUnavailable(f"the adapter's process answered {wire.describe(answer)} to its start")


def _unavailable(failure: WorkerFailed) -> WorkerUnavailable:
    last = failure.traceback.splitlines()[-1:]
    return WorkerUnavailable(": ".join([f"the adapter could not be built: {failure.summary}", *last]))
