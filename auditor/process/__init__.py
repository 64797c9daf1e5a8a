"""An adapter in a process of its own, below `auditor.worker`: the guardian, the child, the parent's side and the wire between them.

Only the standard library and NumPy may be imported here: the child runs in the engine's interpreter.
"""
