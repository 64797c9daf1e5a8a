"""A sampler that is right, and methods that show what reached it."""

import os
import sys
import types

import numpy as np

from auditor.adapter import Generation, Law, Mode, Round


class Plain:
    """Emits the target's own samples."""

    tolerance = 1e-5
    settings = ("temperature", "top_k")
    modes = (Mode("one"), Mode("two", rule="match", summary="the second"))

    def __init__(self, mode="one", scale=1.0):
        self.mode, self.scale = mode, scale
        self.rule = {m.name: m.rule for m in self.modes}[mode]
        self.module = sys
        self.calls = 0

    @property
    def engine(self):
        return {"numpy": np.__version__}

    @property
    def broken(self):
        raise RuntimeError("no such thing")

    def sample(self, p, q, n, seed):
        return np.random.default_rng(seed).choice(len(p), size=n, p=p), np.ones(n, bool)

    def verify(self, p, q, drafts, seed, settings=()):
        return np.concatenate([drafts, p[:, -1:, :].argmax(-1)], axis=1)

    def law(self, p, q, drafts):
        accept = np.zeros(drafts.shape)
        return types.SimpleNamespace(accept=accept, residual=np.broadcast_to(p[:, :1], q.shape), bonus=p[:, -1])

    def speculate(self, p, q, n, seed):
        return Round(
            np.zeros((n, len(p)), np.int64), np.zeros((n, len(q)), np.int64), np.broadcast_to(q, (n, *q.shape))
        )

    def generate(self, model, prompts, max_new_tokens, settings, seed):
        tokens = np.arange(max_new_tokens)
        return [Generation(tokens + len(prompt), finish=f"{model.key} {settings.temperature}") for prompt in prompts]

    def echo(self, *values, **named):
        return values if not named else (values, named)

    def strides(self, array):
        return array.strides, array.shape, bool(array.flags.writeable), float(array[-1, -1, -1])

    def count(self):
        self.calls += 1
        return self.calls

    def surroundings(self):
        keep = ("PYTHONPATH", "VIRTUAL_ENV", "PATH")
        return list(sys.path), {name: os.environ[name] for name in keep if name in os.environ}, sys.executable

    def can_import(self, name):
        try:
            return getattr(__import__(name), "__file__", "") or "built in"
        except ImportError as error:
            return f"ImportError: {error}"

    def process(self):
        return os.getpid(), os.getpgrp(), os.getsid(0)


def law_of(accept):
    return Law(accept, accept[..., None], accept[:, :1])
