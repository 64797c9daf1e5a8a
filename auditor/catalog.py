"""Finding and loading adapters: shipped ones by name, a user's by file or by module, each built in the same way.

An adapter file is loaded by its path under a module name of its own. Neither its folder nor the current directory is put on
`sys.path`, so that a file named `transformers.py` never shadows the library that it wraps.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from auditor.adapter import METHODS, Mode
from auditor.errors import AdapterBroken, AdapterNotFound, AdapterUnsuitable, EngineMissing


@dataclass(frozen=True)
class Shipped:
    """A shipped adapter as its file describes it; `missing` are the requirements that are not installed."""

    name: str
    path: Path
    summary: str
    requires: tuple[str, ...]
    missing: tuple[str, ...]
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def install(self) -> str:
        """The line that installs what it needs."""
        return "pip install " + " ".join(f"'{r}'" if re.search(r"[<>=!~ ]", r) else r for r in self.requires)


@dataclass(frozen=True)
class Loaded:
    """An adapter that can be built, once for each mode."""

    name: str
    source: str
    summary: str
    options: dict[str, str]
    engine: dict[str, str]
    modes: tuple[Mode, ...]
    build: Callable[[str | None], object]


def folder() -> Path:
    """Where the shipped adapters are: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent
    inside = here / "adapters"
    return inside if inside.is_dir() else here.parent / "adapters"


def shipped() -> list[Shipped]:
    """The shipped adapters in order of name; their files are read, not imported."""
    return [describe(path) for path in sorted(folder().glob("*.py"))]


def describe(path: Path) -> Shipped:
    """What the head of an adapter file says. Raises AdapterBroken where it is no Python."""
    text = _read(path)
    try:
        doc = ast.get_docstring(ast.parse(text)) or ""
    except SyntaxError as error:
        raise AdapterBroken(f"{path}:{error.lineno or 1}: {error.msg}") from error
    except ValueError as error:  # what Python before 3.11.4 says of null bytes
        raise AdapterBroken(f"{path}: {error}") from error
    requires = tuple(_requirements(text, path))
    missing, versions = [], {}
    for requirement in requires:
        name = re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0]
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement)
    return Shipped(path.stem, path, doc.split("\n")[0], requires, tuple(missing), versions)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise AdapterNotFound(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise AdapterBroken(f"{path} is not text: {error}") from error


def _requirements(text: str, path: Path) -> list[str]:
    """The dependencies of a PEP 723 block."""
    match = re.search(r"(?m)^# /// script$\n((?:^#(?:| .*)$\n)+?)^# ///$", text)
    if not match:
        return []
    block = "\n".join(line[2:] for line in match.group(1).splitlines())
    try:
        return [str(r) for r in tomllib.loads(block).get("dependencies", [])]
    except tomllib.TOMLDecodeError as error:
        raise AdapterBroken(f"{path}: the script block at its head is not TOML: {error}") from error


# ------------------------------------------------------------------------------------------------------ loading


def load(source: str, *, options: Mapping[str, str], rule: str | None = None, tolerance: float | None = None) -> Loaded:
    """Load an adapter named NAME, FILE.py, FILE.py:ATTR or package.module:ATTR.

    ATTR is a class, an instance or a function `f(p, q, rng)`. `options` reach the constructor, converted to the type of each
    parameter; the option `mode` picks one mode. `rule` and `tolerance` speak for an adapter that cannot. Nothing is built
    here, apart from the check that it can be.

    Raises
    ------
    AdapterNotFound, AdapterBroken, EngineMissing, AdapterUnsuitable, each with one line that says what to do.
    """
    place, _, attribute = source.partition(":") if not _is_windows_drive(source) else (source, "", "")
    if not place:
        raise AdapterNotFound(
            f"{source!r} names no adapter: NAME (see `audit list`), FILE.py:ATTR or package.module:ATTR"
        )
    info: Shipped | None = None
    if place.endswith(".py") or "/" in place or "\\" in place:
        path = Path(place)
        if not path.is_file():
            raise AdapterNotFound(f"there is no file {place}{_nearby(path)}")
        info = describe(path)
    elif not attribute:
        info = _by_name(place)
    if info is not None:
        if info.missing:
            raise EngineMissing(f"adapter {info.name} needs {', '.join(info.missing)}: {info.install}")
        module = _import_file(info.path)
        name = info.name
    else:
        module, name = _import_module(place, attribute), f"{place}:{attribute}"
    target, label = _pick(module, attribute, place)
    if label and info is not None and info.path.parent != folder():
        name = f"{info.name}:{label}"
    summary = _summary(target, info)
    modes = _modes(target, options)
    rest = {k: v for k, v in options.items() if k != "mode" or not getattr(target, "modes", ())}
    overrides: dict[str, Any] = {"rule": rule, "tolerance": tolerance}

    def build(mode: str | None) -> object:
        adapter = _construct(target, rest, mode, name)
        chosen = next((m for m in modes if m.name == mode), None)
        values = {"rule": chosen.rule, "tolerance": chosen.tolerance} if chosen else {}
        values |= {key: value for key, value in overrides.items() if value is not None}
        return _with(adapter, values) if values else adapter

    return Loaded(name, source, summary, dict(options), info.versions if info else {}, modes, build)


def _is_windows_drive(source: str) -> bool:
    return bool(re.match(r"^[A-Za-z]:[\\/]", source))


def _nearby(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.glob("*.py") if p.is_file()]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def _by_name(name: str) -> Shipped:
    known = {adapter.name: adapter for adapter in shipped()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
    hint = f"the nearest is {near[0]!r}" if near else f"there are {', '.join(known)}"
    raise AdapterNotFound(
        f"no adapter is called {name!r}; {hint} (`audit list` shows all; a file is given as ./{name}.py)"
    )


def _import_file(path: Path) -> ModuleType:
    name = f"audited_{path.stem}_{abs(hash(str(path.resolve()))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        del sys.modules[name]
        raise AdapterBroken(f"{path} fails on import: {_where(error, path)}") from error
    return module


def _where(error: BaseException, path: Path) -> str:
    """The exception in one line, with the adapter's own line where it happened."""
    own = os.path.abspath(path)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.abspath(f.filename) == own]
    at = f"line {frames[-1].lineno}, " if frames else ""
    first = str(error).splitlines()
    return f"{at}{type(error).__name__}: {first[0] if first else ''}".rstrip(": ")


def _import_module(module: str, attribute: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        file = Path(module.replace(".", "/") + ".py")
        if module in {adapter.name for adapter in shipped()}:
            hint = f"the shipped adapter is given by its name alone, {module}"
        elif file.is_file():
            hint = f"did you mean ./{file}:{attribute}?"
        else:
            hint = f"a file is given as FILE.py:{attribute}"
        raise AdapterNotFound(f"no module {error.name!r} is installed; {hint}") from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise AdapterBroken(f"{module} fails on import: {type(error).__name__}: {error}") from error


def _has_method(value: object) -> bool:
    return any(callable(getattr(value, method, None)) for method in METHODS)


def _pick(module: ModuleType, attribute: str, place: str) -> tuple[Any, str]:
    """The adapter in a module: what ATTR names, else the only class with an interface method, else the only function."""
    if attribute:
        value: Any = module
        for part in attribute.split("."):
            if not hasattr(value, part):
                near = difflib.get_close_matches(part, [n for n in dir(value) if not n.startswith("_")], n=1)
                raise AdapterNotFound(f"{place}: no {part!r} there" + (f"; did you mean {near[0]!r}?" if near else ""))
            value = getattr(value, part)
        return value, attribute
    own = {
        n: v
        for n, v in vars(module).items()
        if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__
    }
    classes = [n for n, v in own.items() if inspect.isclass(v) and _has_method(v)]
    functions = [n for n, v in own.items() if inspect.isfunction(v)]
    for names in (classes, functions):
        if len(names) == 1:
            return own[names[0]], ""
        if names:
            raise AdapterNotFound(
                f"{place} has several candidates: name one, as {place}:{names[0]} ({', '.join(names)})"
            )
    raise AdapterUnsuitable(
        f"{place} has no class with one of the methods {', '.join(METHODS)} and no function f(p, q, rng)"
    )


def _summary(target: Any, info: Shipped | None) -> str:
    doc = (
        inspect.getdoc(target)
        if inspect.isclass(target) or inspect.isfunction(target)
        else inspect.getdoc(type(target))
    )
    own = (doc or "").split("\n")[0]
    return own or (info.summary if info else "")


def _modes(target: Any, options: Mapping[str, str]) -> tuple[Mode, ...]:
    modes = tuple(getattr(target, "modes", ()) or ())
    wanted = options.get("mode")
    if not modes or wanted is None:
        return modes
    chosen = tuple(m for m in modes if m.name == wanted)
    if not chosen:
        raise AdapterBroken(f"no mode {wanted!r}; there are {', '.join(m.name for m in modes)}")
    return chosen


def _construct(target: Any, options: Mapping[str, str], mode: str | None, name: str) -> object:
    if inspect.isclass(target):
        arguments: dict[str, Any] = _arguments(target, options, name)
        if mode is not None:
            arguments["mode"] = mode
        try:
            return target(**arguments)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except ImportError as error:
            raise EngineMissing(f"adapter {name} cannot import its engine: {error}") from error
        except BaseException as error:
            first = str(error).splitlines()
            raise AdapterBroken(
                f"adapter {name} cannot be built: {type(error).__name__}: {first[0] if first else ''}"
            ) from error
    if options:
        raise AdapterBroken(f"{name} is not a class: it takes no option {next(iter(options))!r}")
    if _has_method(target):
        return target
    if callable(target):
        return FunctionSampler(target)
    raise AdapterUnsuitable(f"{name} is neither a class, nor an adapter, nor a function, but a {type(target).__name__}")


def _arguments(cls: type, options: Mapping[str, str], name: str) -> dict[str, Any]:
    """Options converted to the types of the constructor's parameters."""
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError):
        return dict(options)
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    takes = [n for n in named if n != "mode"]
    out: dict[str, Any] = {}
    for key, text in options.items():
        if key in named:
            out[key] = _converted(key, text, named[key])
        elif open_ended:
            out[key] = text
        else:
            raise AdapterBroken(f"adapter {name} has no option {key!r}; it takes {', '.join(takes) or 'none'}")
    for key in takes:
        if named[key].default is inspect.Parameter.empty and key not in options:
            raise AdapterBroken(f"adapter {name} needs the option {key!r}: --option {key}=...")
    return out


_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "bool": ("true or false", lambda text: _TRUTH[text.lower()]),
    "int": ("a whole number", int),
    "float": ("a number", float),
}


def _converted(key: str, text: str, parameter: inspect.Parameter) -> Any:
    """The text as the type of the parameter's default, else of its annotation; as it is where that is none of `_KINDS`."""
    if parameter.default is parameter.empty or parameter.default is None:
        annotation = parameter.annotation
        kind = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        kind = kind.removeprefix("typing.").removeprefix("Optional[").removesuffix("]").partition("|")[0].strip()
    else:
        kind = type(parameter.default).__name__
    if kind not in _KINDS:
        return text
    words, convert = _KINDS[kind]
    try:
        return convert(text)
    except (KeyError, ValueError) as error:
        raise AdapterBroken(f"option {key}={text} is not {words}") from error


class _Overridden:
    """An adapter seen through other values of some attributes."""

    def __init__(self, adapter: object, values: Mapping[str, Any]) -> None:
        self._adapter = adapter
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def _with(adapter: object, values: Mapping[str, Any]) -> object:
    return _Overridden(adapter, values)


# ----------------------------------------------------------------------------------------------- plain functions


class FunctionSampler:
    """A plain function `f(p, q, rng) -> token` or `-> (token, accepted)` as an adapter with `sample`.

    It is called once a draw with one NumPy generator made from the call's seed. A tutorial function that draws from the global
    generators is honest code too, so `random`, `numpy.random` and, where it is loaded, torch's generator are seeded for the
    time of the call and put back afterwards.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            inspect.signature(function).bind(None, None, None)
        except TypeError as error:
            raise AdapterUnsuitable(
                f"{getattr(function, '__name__', function)} does not take (p, q, rng): {error}"
            ) from error
        except ValueError:
            pass  # a builtin without a signature: the call will tell
        self.function = function

    def sample(self, p: Any, q: Any, n: int, seed: int) -> Any:
        """What the function returns, n times: tokens, or tokens and acceptances, as arrays and otherwise untouched."""
        import random

        import numpy as np

        torch = sys.modules.get("torch")
        kept = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None  # noqa: NPY002
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        if torch:
            torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        function = self.function
        try:
            answers = [function(p, q, rng) for _ in range(n)]
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])  # noqa: NPY002
            if torch:
                torch.set_rng_state(kept[2])
        if answers and all(isinstance(a, tuple) and len(a) == 2 for a in answers):
            tokens, accepted = zip(*answers, strict=True)
            return _array(tokens), _array(accepted)
        return _array(answers)


def _array(answers: Any) -> Any:
    """The answers as an array, unconverted; as they are where they make none, for the audit to say so."""
    import numpy as np

    try:
        return np.asarray(answers)
    except ValueError:
        return answers
