"""Independence of calls and of rows, whatever the sampler's law is: an exact test by exchange.

Take outcomes a_1 .. a_m and b_1 .. b_m of draws with equal inputs: the rows of two calls, or two rows over m calls. Where the b
are independent of the a and of each other, every order of the b is as likely as any other, given the a and the b as a set. So,
one after the other, b_i is a draw from those of the b that are left: a known law with nothing of the sampler's in it. The bet is
that b_i repeats a_i with probability rho, and otherwise is such a draw:

    pay-off_i = 1 - rho + rho 1[b_i = a_i] / (share of a_i among the b that are left),

or 1 where a_i is not among them. Its mean is 1 whatever the sampler does, as long as it is independent; a bias does not matter. The
mean over `RHOS` is an e-value, so are products over groups that are independent of each other, and means over comparisons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auditor.evidence import log_mean

IntArray = npt.NDArray[np.int64]
Pair = tuple[IntArray, IntArray]

RHOS = (0.95, 0.5, 0.15, 0.03)
OFFSETS = (0, 1, -1)
"""Row offsets at which two calls are compared: a seed that moves the stream by one row shows at 1 or -1."""


@dataclass(frozen=True)
class Match:
    """One comparison: its log e-value, the outcomes compared, how many were equal and how many exchange explains."""

    what: str
    log_e: float
    compared: int
    equal: int
    expected: float

    @property
    def words(self) -> str:
        """What was seen."""
        return f"{self.what}: {self.equal} of {self.compared} outcomes equal, {self.expected:.0f} expected"


def compare(groups: Sequence[Pair], what: str) -> Match:
    """Compare outcomes a and b [m] of each group, by integer codes; groups are independent of each other."""
    logs = np.zeros(len(RHOS))
    rho = np.array(RHOS)
    equal, expected, compared = 0, 0.0, 0
    for a, b in groups:
        left, m = Counter(b.tolist()), len(b)
        expected += sum(n * left[value] for value, n in Counter(a.tolist()).items()) / max(m, 1)
        for x, y in zip(a.tolist(), b.tolist(), strict=True):
            share = left[x] / m
            if 0 < share < 1:
                logs += np.log1p(rho * ((1 / share if x == y else 0.0) - 1.0))
            equal += x == y
            left[y] -= 1
            m -= 1
        compared += len(b)
    return Match(what, log_mean(logs), compared, equal, expected)


def across_calls(pairs: Sequence[Pair], what: str) -> list[Match]:
    """Pairs of calls' outcomes [B], row against row at each offset."""
    out = []
    for offset in OFFSETS:
        shifted = [(a[: len(a) - offset], b[offset:]) if offset >= 0 else (a[-offset:], b[:offset]) for a, b in pairs]
        out.append(compare(shifted, f"{what}, same rows" if not offset else f"{what}, rows {abs(offset)} apart"))
    return out


def along_rows(calls: IntArray, what: str) -> list[Match]:
    """Outcomes of independent calls [calls, B]: two rows of one call against each other, over the calls."""
    batch = calls.shape[1]
    gaps = sorted({1, 2, batch // 2} & set(range(1, batch)))
    return [compare([(calls[:, 0], calls[:, gap])], f"{what}, rows {gap} apart") for gap in gaps]


def verdict(matches: Sequence[Match]) -> tuple[float, int, Match | None]:
    """log of the mean e-value, the number of comparisons of outcomes, and the comparison that speaks loudest."""
    if not matches:
        return 0.0, 0, None
    logs = np.array([m.log_e for m in matches])
    return log_mean(logs), sum(m.compared for m in matches), matches[int(logs.argmax())]
