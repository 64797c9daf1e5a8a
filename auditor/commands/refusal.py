"""How every command of `audit` says that it could not do what was asked."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

CANNOT = 2
"""Exit code where an audit could not be carried out."""
INTERRUPTED = 130


def refuse(message: str, code: int = CANNOT) -> NoReturn:
    """One line on stderr, and the end."""
    click.echo(f"audit: {' '.join(message.split())}", err=True)
    sys.exit(code)
