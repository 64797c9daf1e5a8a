"""The steps of an audit, and what can go wrong in each.

1. find the adapter          -> AdapterNotFound     no such name, file or attribute
2. load its file             -> AdapterBroken       the file cannot be read or raises while it is imported
3. find its engine           -> EngineMissing       the library that the adapter wraps is not installed
4. build it with its options -> AdapterBroken       the constructor raises, or an option is not one it takes
5. read what it offers       -> AdapterUnsuitable   no interface method; nothing the requested claims can use
   (in a process of its own)    WorkerUnavailable   no such interpreter, no NumPy in it, it died or hung at the start
6. call it                   -> CallFailed          it raised (an incident; the audit goes on)
                                WorkerFailed        its process crashed, hung, ran out of memory, or gave no answer
7. believe its answer        -> BadAnswer           floats, wrong shape, ids out of range (a finding: `structure`)

Steps 1 to 5 end the run with exit code 2 and one line for the user, which says what to do next. Steps 6 and 7 happen in
the middle of a run: they are recorded with the case that did it and a report is still written.
"""

from __future__ import annotations


class AuditError(Exception):
    """The audit cannot be carried out; the message is one line, written for the user. Exit code 2."""


class AdapterNotFound(AuditError):
    """No adapter of that name, no such file, or no such attribute in it."""


class AdapterBroken(AuditError):
    """The adapter's file or constructor raised."""


class EngineMissing(AuditError):
    """The adapter's engine is not installed; the message has the line that installs it."""


class AdapterUnsuitable(AuditError):
    """The adapter has no method of the interface, or none that the requested claims can use."""


class WorkerUnavailable(AuditError):
    """The adapter's own process could not be started, or it ended or hung before the adapter was built."""


class CallFailed(Exception):
    """The adapter raised while it was called. `traceback` is its own, trimmed to the adapter's frames."""

    kind = "exception"
    """For `Incident.kind`: "exception", "crash", "hang", "memory" or "garbled"."""
    audit_over = False
    """Whether the call only ended because the audit's own time was up, which is nobody's fault."""

    def __init__(self, method: str, summary: str, traceback: str) -> None:
        super().__init__(f"{method} raised {summary}")
        self.method = method
        self.summary = summary
        self.traceback = traceback


class WorkerFailed(CallFailed):
    """The adapter's own process failed in a call; `summary` says how. `traceback` is what it wrote last, stacks included.

    No process is left behind, unless `alive` is set; the next call starts a fresh one.
    """

    alive = False
    """Whether the worker that failed goes on."""

    def __init__(self, method: str, summary: str, traceback: str) -> None:
        super().__init__(method, summary, traceback)
        self.args = (f"{method}: {summary}",)


class WorkerCrashed(WorkerFailed):
    """It ended by itself, with the signal or the exit code that the summary names."""

    kind = "crash"


class WorkerHung(WorkerFailed):
    """It gave no answer within the time limit of a call, or before the audit's time was up (`audit_over`)."""

    kind = "hang"

    def __init__(self, method: str, summary: str, traceback: str, audit_over: bool = False) -> None:
        super().__init__(method, summary, traceback)
        self.audit_over = audit_over


class WorkerOutOfMemory(WorkerFailed):
    """It used more memory than the limit that the user has set."""

    kind = "memory"


class WorkerGarbled(WorkerFailed):
    """It answered with something that is not an answer: a value that no message carries, or bytes that are no message."""

    kind = "garbled"

    def __init__(self, method: str, summary: str, traceback: str, alive: bool = False) -> None:
        super().__init__(method, summary, traceback)
        self.alive = alive


class BadAnswer(Exception):
    """The adapter answered with something that is not an answer; `kind` is stable, the message is for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
