"""Which Python runs an adapter, and the environment it gets."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from auditor.errors import AuditError

OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")
"""Variables that carry one interpreter's packages into another."""


def python_for(adapter_name: str, flag: str | None) -> str | None:
    """The interpreter that shall run an adapter, or None for this one.

    In this order: the path that the user gave (`--python PATH`), the variable `AUDIT_PYTHON_<NAME>` (the adapter's name in
    capitals, other characters as `_`), and `[tool.audit.adapters.<name>] python = PATH` in the nearest pyproject.toml from the
    current directory upward, where a relative path is relative to that file. Raises `AuditError` where that file is not
    readable or the setting is not a string.
    """
    variable = "AUDIT_PYTHON_" + re.sub(r"[^A-Z0-9]", "_", adapter_name.upper())
    chosen = flag or os.environ.get(variable)
    if chosen:
        return _absolute(chosen, Path.cwd())
    for folder in (Path.cwd(), *Path.cwd().parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return _from_file(file, adapter_name)
    return None


def _from_file(file: Path, adapter_name: str) -> str | None:
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AuditError(f"{file} cannot be read: {error}") from error
    where = ("tool", "audit", "adapters", adapter_name, "python")
    value: object = settings
    for name in where:
        value = value.get(name) if isinstance(value, dict) else None
    if value is not None and not isinstance(value, str):
        raise AuditError(f"{file}: [tool.audit.adapters.{adapter_name}] python must be the path of an interpreter")
    return _absolute(value, file.parent) if value else None


def _absolute(path: str, folder: Path) -> str:
    # Not resolved: the `python` of a virtual environment is a link, and means another place than its target.
    return os.path.abspath(folder / Path(path).expanduser())


def environment(python: str) -> Mapping[str, str]:
    """The environment of a worker: this process's own, and for another interpreter without what carries our packages there.

    There its own folder comes first on PATH, in the place of ours, and VIRTUAL_ENV names its virtual environment, if it has one:
    engines call tools that are installed beside them.
    """
    variables = dict(os.environ)
    if os.path.abspath(python) == os.path.abspath(sys.executable):
        return variables
    for name in (*OURS, "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT"):
        variables.pop(name, None)
    folder = Path(os.path.abspath(python)).parent
    ours = {os.path.abspath(Path(sys.executable).parent)} if sys.prefix != sys.base_prefix else set()
    places = [
        place for place in variables.get("PATH", os.defpath).split(os.pathsep) if os.path.abspath(place) not in ours
    ]
    variables["PATH"] = os.pathsep.join([str(folder), *places])
    if (folder.parent / "pyvenv.cfg").is_file():
        variables["VIRTUAL_ENV"] = str(folder.parent)
    return variables
