"""Tiny samplers for the audit to judge: correct ones of different construction, and ones that are wrong on purpose.

`CORRECT` may never be accused. `FAULTY` must be caught: `KNOWN` has a sampler for each kind of public bug, `UNLISTED` has
faults that no catalogue lists, or that only rows, calls, seeds or sizes show. Each is a class with methods of the adapter
interface and these attributes: `rule`, `expected_claims` (false of it; at least one is to be found violated), `origin` (the
public report) and `fault` (the catalogued fault it is an instance of, if any).
"""

from .correct import CORRECT
from .drafters import KNOWN_DRAFTERS
from .known import KNOWN_CALLS
from .unlisted import UNLISTED

KNOWN: tuple[type, ...] = (*KNOWN_CALLS, *KNOWN_DRAFTERS)
FAULTY: tuple[type, ...] = (*KNOWN, *UNLISTED)

__all__ = ["CORRECT", "FAULTY", "KNOWN", "UNLISTED"]
