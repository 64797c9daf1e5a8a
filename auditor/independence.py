"""Fair coins: independence of calls and of rows, whatever the sampler's law is.

Take two calls with equal inputs in every row, and two rows of each: outcomes a0, a1 of the first call and b0, b1 of the second.
If calls are independent and rows are independent, exchanging b0 and b1 does not change the joint law. So given that
{a0, a1} = {b0, b1} with a0 != a1, it is a fair coin whether the outcomes match aligned (a0 = b0) or crosswise (a0 = b1): an exact
test with no law in it, which a biased sampler passes and a shared random number does not. Read across calls it tests seeds, read
along a call it tests rows. With k aligned among n such coins the e-value is the likelihood ratio of a uniform mixture over
biases, 2^n B(k + 1, n - k + 1); e-values of different probes and offsets are averaged, which needs no independence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auditor.evidence import log_mean

IntArray = npt.NDArray[np.int64]

OFFSETS = (0, 1, -1)
"""Row offsets at which two calls are compared: a seed that moves the stream by one row shows at 1 or -1."""


@dataclass(frozen=True)
class Coins:
    """Aligned and crosswise matches of one comparison, and what was compared."""

    aligned: int
    crossed: int
    what: str

    @property
    def log_e(self) -> float:
        """log e-value against fairness."""
        from scipy.special import betaln

        n = self.aligned + self.crossed
        return float(n * np.log(2) + betaln(self.aligned + 1, self.crossed + 1))


def compare(a0: IntArray, a1: IntArray, b0: IntArray, b1: IntArray, what: str) -> Coins:
    """Coins from outcome codes [n] of four draws that are exchangeable in (b0, b1) under independence."""
    told = a0 != a1
    return Coins(int((told & (a0 == b0) & (a1 == b1)).sum()), int((told & (a0 == b1) & (a1 == b0)).sum()), what)


def across_calls(first: IntArray, second: IntArray, what: str) -> list[Coins]:
    """Two calls' outcomes [B], row against row at each offset."""
    out = []
    for offset in OFFSETS:
        a, b = (first[: len(first) - offset], second[offset:]) if offset >= 0 else (first[-offset:], second[:offset])
        n = min(len(a), len(b)) // 2 * 2
        words = f"{what}, same rows" if not offset else f"{what}, rows {abs(offset)} apart"
        out.append(compare(a[0:n:2], a[1:n:2], b[0:n:2], b[1:n:2], words))
    return out


def along_rows(first: IntArray, second: IntArray, what: str) -> list[Coins]:
    """Pairs of rows of one call, against the same pairs of another call."""
    out = []
    batch = len(first)
    for gap in sorted({1, 2, batch // 2}):
        start = np.arange(batch - gap)
        start = start[(start // gap) % 2 == 0]
        if gap and len(start):
            words = f"{what}, rows {gap} apart"
            out.append(compare(first[start], second[start], first[start + gap], second[start + gap], words))
    return out


def verdict(coins: list[Coins]) -> tuple[float, int, Coins | None]:
    """log of the mean e-value, the number of coins, and the comparison that is least fair."""
    if not coins:
        return 0.0, 0, None
    logs = np.array([c.log_e for c in coins])
    return log_mean(logs), sum(c.aligned + c.crossed for c in coins), coins[int(logs.argmax())]
