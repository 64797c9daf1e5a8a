"""An audit harness for speculative sampling: wrap a sampler, get a verdict with a stated error rate."""

__version__ = "0.1.0"
