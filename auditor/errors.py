"""The steps of an audit, and what can go wrong in each.

1. find the adapter          -> AdapterNotFound     no such name, file or attribute
2. load its file             -> AdapterBroken       the file cannot be read or raises while it is imported
3. find its engine           -> EngineMissing       the library that the adapter wraps is not installed
4. build it with its options -> AdapterBroken       the constructor raises, or an option is not one it takes
5. read what it offers       -> AdapterUnsuitable   no interface method; nothing the requested claims can use
6. call it                   -> CallFailed          it raised (an incident; the audit goes on)
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


class CallFailed(Exception):
    """The adapter raised while it was called. `traceback` is its own, trimmed to the adapter's frames."""

    def __init__(self, method: str, summary: str, traceback: str) -> None:
        super().__init__(f"{method} raised {summary}")
        self.method = method
        self.summary = summary
        self.traceback = traceback


class BadAnswer(Exception):
    """The adapter answered with something that is not an answer; `kind` is stable, the message is for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
