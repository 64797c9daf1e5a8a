"""The adapter to start from that `audit new` writes."""

TEMPLATE = '''# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy"]
# ///
"""An adapter for my sampler. Audit it with: audit run --adapter ./{file}"""

import numpy as np


class MySampler:
    # What it claims, with the defaults that hold when a line is left out.
    rule = "rejection"  # or "onehot" (drafts not sampled), or "match" (sample and compare)
    tolerance = 1e-6  # relative error of its arithmetic: 1e-6 for float32, 1e-2 for bfloat16
    # reproducible = False   # if the same seed may give other draws
    # max_batch = 1          # if it takes one row a call

    def verify(self, p, q, drafts, seed):
        """p [B, gamma+1, V], q [B, gamma, V], drafts [B, gamma] drawn from q by the caller.

        Returns [B, gamma+1]: the accepted drafts, then one token of the sampler's own, then -1.
        p and q may be read-only views whose rows are all the same.
        """
        # Put the call of your implementation here. What follows is the algorithm as published, row by row.
        rng = np.random.default_rng(seed)
        batch, gamma = drafts.shape
        tokens = np.full((batch, gamma + 1), -1)
        for b in range(batch):
            for i in range(gamma):
                x = drafts[b, i]
                if rng.random() * q[b, i, x] < p[b, i, x]:  # accept with min(1, p/q)
                    tokens[b, i] = x
                    continue
                residual = np.maximum(p[b, i] - q[b, i], 0.0)
                if residual.sum() == 0.0:  # p = q to within rounding
                    residual = p[b, i]
                tokens[b, i] = rng.choice(len(residual), p=residual / residual.sum())
                break
            else:
                tokens[b, gamma] = rng.choice(p.shape[-1], p=p[b, gamma])
        return tokens

    # An implementation that shows only the first token of a round can have this instead of verify:
    #
    # def sample(self, p, q, n, seed):
    #     """One draft from q [V] and its verification against p [V], n times: tokens [n], accepted [n]."""
'''
"""`{file}` is the file's name."""
