"""Models whose next-token law is known exactly, as arrays and as checkpoints on disk."""

from auditor.oracle.checkpoint import make_pair, read_model, words, write_checkpoint, write_model, write_pair
from auditor.oracle.llama import Llama, Shape
from auditor.oracle.pairs import Pair, Sensitivity, attentive_pair, sensitivity, softmax, table_pair, tv

__all__ = [
    "Llama",
    "Pair",
    "Sensitivity",
    "Shape",
    "attentive_pair",
    "make_pair",
    "read_model",
    "sensitivity",
    "softmax",
    "table_pair",
    "tv",
    "words",
    "write_checkpoint",
    "write_model",
    "write_pair",
]
