"""Adapters are found, loaded by path, built with options, and every failure is one clear line."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from auditor import catalog
from auditor.errors import AdapterBroken, AdapterNotFound, AdapterUnsuitable, EngineMissing
from tests.miniatures import CORRECT

CLASS = """
class Mine:
    def __init__(self, size: int = 3, exact: bool = False, name: str = "x", rate=0.5):
        self.values = (size, exact, name, rate)
    def sample(self, p, q, n, seed):
        return None
"""


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def build(source: str, mode: str | None = None, **options: str) -> object:
    return catalog.load(source, options=options).build(mode)


def test_shipped_adapters_are_described_without_being_imported() -> None:
    before = set(sys.modules)
    names = {a.name for a in catalog.shipped()}
    assert {"reference", "faulty", "transformers"} <= names
    assert "torch" not in set(sys.modules) - before
    assert all(a.summary for a in catalog.shipped())


def test_a_name_that_is_nearly_one_is_answered_with_the_nearest() -> None:
    with pytest.raises(AdapterNotFound, match="'reference'"):
        build("referense")


@pytest.mark.parametrize("attribute", ["", ":Mine"])
def test_options_reach_the_constructor_with_their_types(tmp_path: Path, attribute: str) -> None:
    source = written(tmp_path, CLASS) + attribute
    adapter = build(source, size="7", exact="true", name="5", rate="2")
    assert adapter.values == (7, True, "5", 2.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sice": "1"}, "it takes size, exact, name, rate"),
        ({"size": "big"}, "size=big is not a whole number"),
        ({"exact": "?"}, "true or false"),
    ],
)
def test_a_bad_option_is_named(tmp_path: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(AdapterBroken, match=words):
        build(written(tmp_path, CLASS), **options)


def test_optional_and_required_parameters(tmp_path: Path) -> None:
    text = (
        "from typing import Optional\n"
        "class Mine:\n"
        "    def __init__(self, path: str, k: int | None = None, t: Optional[float] = None, *, other=None, **rest):\n"
        "        self.values = (path, k, t, other, rest)\n"
        "    def sample(self, p, q, n, seed): ...\n"
    )
    source = written(tmp_path, text)
    adapter = build(source, path="1", k="2", t="3", other="4", more="5")
    assert adapter.values == ("1", 2, 3.0, "4", {"more": "5"})  # type: ignore[attr-defined]
    with pytest.raises(AdapterBroken, match=r"needs the option 'path': --option path=\.\.\."):
        build(source, k="2")


def test_instances_and_functions_and_modules(tmp_path: Path) -> None:
    source = written(
        tmp_path, CLASS + "\none = Mine(size=9)\n\ndef step(p, q, rng):\n    return rng.choice(len(p), p=p)\n"
    )
    assert build(source + ":one").values[0] == 9  # type: ignore[attr-defined]
    tokens = build(source + ":step").sample(np.array([0.5, 0.5]), np.array([0.5, 0.5]), 8, 1)  # type: ignore[attr-defined]
    assert tokens.shape == (8,)
    assert isinstance(build(f"tests.miniatures.correct:{CORRECT[0].__name__}"), CORRECT[0])
    with pytest.raises(AdapterNotFound, match=r"FILE\.py"):
        build("no.such.module:Thing")
    with pytest.raises(AdapterNotFound, match="did you mean 'Mine'"):
        build(source + ":Mien")
    with pytest.raises(AdapterNotFound, match="by its name alone, reference"):
        build("reference:Reference")
    for nothing in ("", ":", ":Mine"):
        with pytest.raises(AdapterNotFound, match="names no adapter"):
            build(nothing)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("def broken(:\n", AdapterBroken, "mine.py:1"),
        ("x = 1\nraise RuntimeError('boom')\n", AdapterBroken, "line 2, RuntimeError: boom"),
        ("x = 1\n", AdapterUnsuitable, "no class with one of the methods"),
        ("def a(p, q, rng): ...\ndef b(p, q, rng): ...\n", AdapterNotFound, "several candidates.*a, b"),
        ("def f(p): ...\n", AdapterUnsuitable, r"does not take \(p, q, rng\)"),
        (
            "class A:\n    def sample(self): ...\n    def __init__(self):\n        raise ValueError('no licence')\n",
            AdapterBroken,
            "no licence",
        ),
        (
            '# /// script\n# dependencies = ["engine-that-is-not-there>=2"]\n# ///\ndef f(p, q, rng): ...\n',
            EngineMissing,
            "pip install 'engine-that-is-not-there>=2'",
        ),
        ("# /// script\n# dependencies = [\n# ///\ndef f(p, q, rng): ...\n", AdapterBroken, "not TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        build(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    written(tmp_path, CLASS, "sampler.py")
    with pytest.raises(AdapterNotFound, match=r"did you mean .*sampler\.py"):
        build(str(tmp_path / "samplr.py"))


def test_a_file_given_as_a_module_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, CLASS, "my_sampler.py")
    with pytest.raises(AdapterNotFound, match=r"did you mean \./my_sampler\.py:Mine"):
        build("my_sampler:Mine")


def test_the_line_is_named_for_a_relative_path_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "x = 1\nraise RuntimeError('boom')\n")
    with pytest.raises(AdapterBroken, match=r"mine\.py fails on import: line 2, RuntimeError: boom"):
        build("./mine.py")


@pytest.mark.parametrize("content", [b"x = 1\x00\n", b"\xff\xfe"])
def test_a_file_that_is_no_text(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(content)
    with pytest.raises(AdapterBroken, match=r"mine\.py") as caught:
        build(str(path))
    assert "\n" not in str(caught.value)


def test_answers_that_make_no_array_are_passed_on_as_they_are(tmp_path: Path) -> None:
    text = "def f(p, q, rng):\n    return (0, True) if rng.random() < 0.5 else 0\n"
    answers = build(written(tmp_path, text)).sample(None, None, 64, 1)  # type: ignore[attr-defined]
    assert isinstance(answers, list)
    assert {type(a) for a in answers} == {int, tuple}


def test_a_file_never_shadows_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    adapter = build(written(tmp_path, "import json\n" + CLASS + "\nassert json.dumps\n", "json.py"))
    assert sys.path == path
    assert type(adapter).__module__ != "json"
    other = tmp_path / "other"
    other.mkdir()
    second = build(written(other, CLASS, "json.py"))
    assert type(second) is not type(adapter)


def test_modes_are_built_one_by_one_and_the_command_line_speaks_for_the_adapter(tmp_path: Path) -> None:
    text = (
        "from auditor.adapter import Mode\n"
        "class M:\n"
        "    modes = (Mode('a', rule='match'), Mode('b', tolerance=0.01))\n"
        "    def __init__(self, mode='a', k: int = 1):\n"
        "        self.mode, self.k = mode, k\n"
        "    def sample(self, p, q, n, seed): ...\n"
    )
    source = written(tmp_path, text)
    loaded = catalog.load(source, options={"k": "4"})
    assert [m.name for m in loaded.modes] == ["a", "b"]
    one, two = loaded.build("a"), loaded.build("b")
    assert (one.mode, one.k, one.rule, two.tolerance) == ("a", 4, "match", 0.01)  # type: ignore[attr-defined]
    assert [m.name for m in catalog.load(source, options={"mode": "b"}).modes] == ["b"]
    with pytest.raises(AdapterBroken, match="there are a, b"):
        catalog.load(source, options={"mode": "c"})
    forced = catalog.load(source, options={}, rule="onehot", tolerance=0.5).build("a")
    assert (forced.rule, forced.tolerance) == ("onehot", 0.5)  # type: ignore[attr-defined]


def test_a_function_that_draws_from_the_global_generators_is_seeded_and_leaves_them_alone(tmp_path: Path) -> None:
    import random

    text = "import random, numpy as np\ndef f(p, q, rng):\n    return int(random.random() < 0.5) * 2 + int(np.random.random() < 0.5)\n"
    adapter = build(written(tmp_path, text))
    state, own = random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index,union-attr]  # noqa: NPY002
    law = np.full(4, 0.25)
    first, again, other = (adapter.sample(law, law, 64, seed) for seed in (1, 1, 2))  # type: ignore[attr-defined]
    assert (first == again).all()
    assert (first != other).any()
    assert random.getstate() == state
    assert (np.random.get_state()[1] == own).all()  # type: ignore[index]  # noqa: NPY002
