"""Which Python runs an adapter: the flag, the variable, the project's file, in this order."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from auditor.errors import AuditError
from auditor.process.interpreter import environment, python_for


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "deep" / "down").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.audit.adapters.vllm]\npython = "envs/vllm/bin/python"\n')
    monkeypatch.chdir(tmp_path / "deep" / "down")
    for name in list(os.environ):
        if name.startswith("AUDIT_PYTHON"):
            monkeypatch.delenv(name)
    return tmp_path


def test_the_order(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert python_for("other", None) is None
    assert python_for("vllm", None) == str(project / "envs/vllm/bin/python")
    monkeypatch.setenv("AUDIT_PYTHON_VLLM", "/env/bin/python")
    assert python_for("vllm", None) == "/env/bin/python"
    assert python_for("vllm", "../python") == str(project / "deep" / "python")
    assert python_for("vllm", "~/python") == str(Path.home() / "python")
    monkeypatch.setenv("AUDIT_PYTHON_MY_SAMPLER_2", "/mine")
    assert python_for("my-sampler.2", None) == "/mine"


def test_the_nearest_file_counts(project: Path) -> None:
    (project / "deep" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert python_for("vllm", None) is None


@pytest.mark.parametrize("text", ["[tool.audit.adapters.vllm]\npython = 3\n", "[tool\n"])
def test_a_broken_file_is_told(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(text)
    with pytest.raises(AuditError, match=r"pyproject\.toml"):
        python_for("vllm", None)


def test_links_are_not_followed(project: Path) -> None:
    (project / "python").symlink_to(sys.executable)
    assert python_for("vllm", str(project / "python")) == str(project / "python")


def test_this_interpreter_keeps_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert environment(sys.executable)["PYTHONPATH"] == "/somewhere"
    assert "PYTHONPATH" not in environment("/opt/env/bin/python")
