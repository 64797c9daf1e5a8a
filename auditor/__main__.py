"""`python -m auditor` is the command `audit`."""

import os
import sys

# `python -m` puts the current directory in front, where a user's transformers.py would stand for the library of that name.
if not sys.flags.safe_path and sys.path and os.path.abspath(sys.path[0] or ".") == os.getcwd():
    del sys.path[0]

from auditor.cli import main

main(prog_name="audit")
