"""The worker: the program that runs one adapter for the audit. It is started by its path, in whatever interpreter has the engine.

Nothing of ours need be installed there, and no folder of ours is put on `sys.path`: the script's own folder is taken from
it (its modules have plain names like `wire`, which must shadow nothing), and the package `auditor` is registered from the
folder around this one, so that an adapter's `import auditor.adapter` works. Only the modules that live on the standard library
and NumPy can be imported so.

Arguments: the descriptors of four pipes (requests, answers, lifeline, status; see `auditor.process.guardian` and `auditor.process.wire`).
Standard output and error are the log.
"""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

ATTRIBUTE_BYTES = 2**16
TRACEBACK_CHARACTERS = 4000
RECORD_METHODS = ("law", "speculate", "generate", "plain")
"""Methods whose answers are records (or lists of them), see `auditor.adapter` and `auditor.engines.calls`."""


def main() -> None:
    """Become guardian and worker; the worker serves requests until their pipe is closed."""
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.realpath(place) != here]
    if sys.version_info < (3, 11):  # noqa: UP036 - it is another interpreter than ours
        sys.exit(f"{sys.executable} is Python {sys.version.split()[0]}; an adapter needs 3.11 or newer")
    requests, answers, lifeline, status = map(int, sys.argv[1:])
    del sys.argv[1:]
    _register(os.path.dirname(here))

    from auditor.process.guardian import fork_guarded

    fork_guarded(lifeline, status)
    _prepare()
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        sys.exit(f"this interpreter has no NumPy ({error}): {sys.executable} -m pip install numpy")
    _serve(requests, answers)


def _register(folder: str) -> None:
    """Make the package `auditor` out of its folder, whatever `sys.path` says."""
    spec = spec_from_file_location("auditor", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    package = module_from_spec(spec)
    sys.modules["auditor"] = package
    spec.loader.exec_module(package)


def _prepare() -> None:
    import contextlib
    import faulthandler
    import io
    import resource

    faulthandler.enable()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an engine's core has gigabytes
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what was printed before a crash shall be in the log
            stream.reconfigure(line_buffering=True)


def _serve(requests: int, answers: int) -> None:
    from auditor.process import wire

    def read(view: memoryview) -> int:
        count = os.readv(requests, [view])
        if count == 0:
            raise EOFError
        return count

    adapter: Any = None
    me = os.getpid()
    while True:
        try:
            request = wire.receive(read)
        except EOFError:
            return
        if request["kind"] in ("load", "build"):
            adapter, answer = _build(request)
        else:
            answer = _call(adapter, request)
        if os.getpid() != me:  # a fork that the adapter forgot; it must not answer as well
            os._exit(1)
        try:
            pieces = wire.pack(answer, lenient=True)
        except Exception as error:
            text = (
                str(error)
                if isinstance(error, wire.Unsendable)
                else f"a value that cannot be read ({_one_line(error)})"
            )
            pieces = wire.pack({"kind": "garbled", "summary": text})
        del request, answer
        while pieces:
            wire.write_some(answers, pieces)


def _build(request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The adapter and what the audit needs to know of it; None and why, where it cannot be loaded or built."""
    import numpy

    from auditor.catalog import load
    from auditor.errors import AuditError

    try:
        loaded = load(
            request["source"], options=request["options"], rule=request["rule"], tolerance=request["tolerance"]
        )
        if request["kind"] == "load":
            parts = {name: getattr(loaded, name) for name in ("name", "summary", "engine", "modes")}
            return None, {"kind": "loaded", **parts}
        adapter = loaded.build(request["mode"])
    except AuditError as error:
        return None, {"kind": "refused", "error": type(error).__name__, "message": str(error)}
    except BaseException as error:
        return None, {"kind": "refused", "error": "AdapterBroken", "message": f"it cannot be built: {_one_line(error)}"}
    attributes, methods = _offers(adapter)
    versions = {"python": sys.version.split()[0], "numpy": numpy.__version__}
    return adapter, {"kind": "ready", "attributes": attributes, "methods": methods, "versions": versions}


def _offers(adapter: Any) -> tuple[dict[str, Any], list[str]]:
    """Its public attributes that are plain values, and the names of its public methods."""
    from auditor.process import wire

    attributes, methods = {}, []
    # The catalog may have put other values in front of the adapter's own.
    for name in {*dir(adapter), *dir(getattr(adapter, "_adapter", None))}:
        if not name.startswith("_"):
            try:
                value = getattr(adapter, name)
                if callable(value):
                    methods.append(name)
                elif sum(piece.nbytes for piece in wire.pack({name: value})) <= ATTRIBUTE_BYTES:
                    attributes[name] = value
            except Exception:  # a property that raises, a module, a model: nothing that the audit could use
                continue
    return attributes, methods


def _call(adapter: Any, request: dict[str, Any]) -> dict[str, Any]:
    method = request["method"]
    try:
        value = getattr(adapter, method)(*request["arguments"], **request["keywords"])
        if method in RECORD_METHODS:
            value = _as_record(method, value)
        return {"kind": "answer", "value": value}
    except BaseException as error:  # an exit or an interrupt that the adapter raises by itself is its fault as well
        import traceback

        frames = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, frames))
        return {"kind": "raised", "summary": _one_line(error), "traceback": text[-TRACEBACK_CHARACTERS:]}


def _as_record(method: str, value: Any) -> Any:
    """An answer that has the attributes of the interface's own class for it, as that class: the wire knows no other."""
    import dataclasses

    from auditor.adapter import Generation, Law, Round

    if method in ("generate", "plain") and isinstance(value, (list, tuple)):
        return [_as_record("generation", item) for item in value]
    kind: Any = {"law": Law, "speculate": Round}.get(method, Generation)
    if value is None or isinstance(value, kind):
        return value
    names = [field.name for field in dataclasses.fields(kind) if hasattr(value, field.name)]
    needed = {field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING}
    return kind(**{name: getattr(value, name) for name in names}) if needed <= set(names) else value


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    main()
