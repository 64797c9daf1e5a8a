"""`python -m auditor` is the command `audit`."""

from auditor.cli import main

main(prog_name="audit")
