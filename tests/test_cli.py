"""The command: one clear line and exit code 2 for wrong input, a report for everything else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from auditor import __version__
from auditor.cli import main
from auditor.results import decode

SMALL = ("--seed", "1", "--max-rounds", "30000", "--quiet", "--in-process")

TUTORIAL = """
import numpy as np
def speculative_step(p, q, rng):
    x = rng.choice(len(q), p=q)
    if rng.random() < min(1.0, p[x] / q[x]):
        return x, True
    residual = np.maximum(p - q, 0.0); residual /= residual.sum()
    return rng.choice(len(p), p=residual), False
"""

VERIFY = """
import numpy as np
class A:
    calls = 0
    def verify(self, p, q, drafts, seed):
        self.calls += 1
        tokens = np.full((len(drafts), drafts.shape[1] + 1), -1)
        tokens[:, 0] = drafts[:, 0]
        {body}
        return tokens
"""


def audit(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def saved(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def refused(result: Result, words: str) -> None:
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert result.output.count("\n") == 1
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--adapter", "referense"), "'reference'"),
        (("--adapter", "no/such/file.py"), "there is no file"),
        (("--adapter", "faulty", "--option", "fault=residual-o"), "residual-"),
        (("--adapter", "faulty", "--option", "falt=residual-p"), "it takes fault, severity, rule"),
        (("--adapter", "faulty", "--option", "fault"), "key=value"),
        (("--adapter", "faulty", "--option", "fault=a", "--option", "fault=b"), "twice"),
        (("--adapter", "reference", "--claims", "output-lore"), "'output-law'"),
        (("--adapter", "reference", "--alpha", "1.5"), "between 0 and 1"),
        (("--adapter", "reference", "--max-rounds", "0"), "positive"),
        (("--adapter", "reference", "--max-seconds", "inf"), "positive"),
        (("--adapter", "reference", "--call-timeout", "nan"), "positive"),
        (("--adapter", "reference", "--max-seconds", "-1"), "positive"),
        (("--adapter", "reference", "--rule", "rejecting"), "rejection"),
        (("--adapter", "reference", "--tolerance", "2"), "[0, 1)"),
        (("--adapter", "reference", "--claims", "bonus-token,sequence-law", "--option", "dtype=float8"), "float8"),
        (("--adapter", "reference", "--json", "/no/such/folder/x.json"), "no such directory"),
        (("--adapter", "reference", "--json", "/"), "that is no file"),
        (("--adapter", "reference", "--json", ""), "that is no file"),
        (("--adapter", "reference", "--report", "/dev/null/x"), "--report"),
        (("--adapter", "reference", "--claims", "sequence-law"), "nothing can be checked"),
        (("--adapter", "reference", "--python", "/bin/true"), "--in-process"),
    ],
)
def test_wrong_input_gets_one_line(arguments: tuple[str, ...], words: str) -> None:
    refused(audit("run", *SMALL, *arguments), words)


def test_conforming_and_violated(tmp_path: Path) -> None:
    good = audit("run", "--adapter", "reference", *SMALL)
    assert good.exit_code == 0, good.output
    bad = audit("run", "--adapter", "faulty", "--option", "fault=residual-p", *SMALL)
    assert bad.exit_code == 1, bad.output
    assert "residual-p" in bad.output


def test_the_tutorial_passes_and_its_naive_twin_is_named(tmp_path: Path) -> None:
    right = saved(tmp_path, TUTORIAL)
    wrong = saved(tmp_path, TUTORIAL.replace("np.maximum(p - q, 0.0); residual /= residual.sum()", "p"), "naive.py")
    assert audit("run", "--adapter", right, *SMALL).exit_code == 0
    result = audit("run", "--adapter", wrong + ":speculative_step", *SMALL)
    assert result.exit_code == 1, result.output
    assert "[residual-p]" in result.output


def test_report_and_json(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = CliRunner().invoke(
        main,
        [
            "run",
            "--adapter",
            "faulty",
            "--option",
            "fault=bonus-greedy",
            *SMALL,
            "--report",
            str(folder),
            "--json",
            "-",
        ],
    )
    assert result.exit_code == 1
    report = decode(result.stdout)
    assert report.exit_code == 1
    assert decode((folder / "report.json").read_text()) == report
    assert {"report.json", "report.html", "report.md", "junit.xml", "journal.jsonl"} <= {
        p.name for p in folder.iterdir()
    }
    assert "bonus-greedy" in (folder / "report.html").read_text()
    kinds = {json.loads(line)["kind"] for line in (folder / "journal.jsonl").read_text().splitlines()}
    assert {"visit", "violation"} <= kinds


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("tokens = tokens.astype(float)", 1, "expected integers"),
        ("tokens = tokens[:, :1]", 1, "expected ("),
        ("tokens[:, 0] = p.shape[-1]", 1, "the vocabulary has"),
        ("tokens = tokens.astype(float); tokens[0] = np.nan", 1, "NaN"),
        ("return None", 1, "returned None"),
        ("tokens[:] = -1", 1, "without a token"),
        ("if self.calls > 40: tokens = 'garbage'", 1, "verify returned"),
        ("raise RuntimeError('engine on fire')", 2, "engine on fire"),
        ("if p.shape[-1] > 1000: raise MemoryError('too wide')", 1, "too wide"),
    ],
)
def test_an_adapter_that_misbehaves_is_reported(tmp_path: Path, body: str, code: int, words: str) -> None:
    folder = tmp_path / "out"
    source = saved(tmp_path, VERIFY.format(body=body))
    result = audit("run", "--adapter", source, *SMALL, "--report", str(folder))
    assert result.exit_code == code, result.output
    report = decode((folder / "report.json").read_text())
    seen = [f.text for f in report.findings] + [i.text for i in report.incidents]
    assert any(words in text for text in seen), seen
    assert all(f.case is not None for f in report.findings if f.claim in ("structure", "edge-cases"))
    assert not report.error


def test_list_explain_new_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = audit("list").output
    for word in ("reference", "transformers", "output-law", "residual-p", "onehot"):
        assert word in listed
    for name in ("residual-law", "bonus-dropped", "match"):
        assert audit("explain", name).exit_code == 0
    refused(audit("explain", "residual-lore"), "residual-law")
    assert __version__ in audit("--version").output
    assert audit("new", "start.py").exit_code == 0
    refused(audit("new", "start.py"), "--force")
    refused(audit("new", "start.txt"), ".py")
    assert audit("new", "start.py", "--force").exit_code == 0
    result = audit("run", "--adapter", "./start.py", *SMALL)
    assert result.exit_code == 0, result.output


def test_python_dash_m_in_a_process_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "auditor", "run", "--adapter", "reference", *SMALL[:5]],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "conforms" in done.stdout


def test_ctrl_c_leaves_a_partial_report_that_says_so(tmp_path: Path) -> None:
    source = saved(tmp_path, "import time\n" + TUTORIAL.replace("    x = rng", "    time.sleep(0.0005)\n    x = rng"))
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "auditor", "run", "--adapter", source, "--report", str(folder), "--seed", "1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    journal = folder / "journal.jsonl"
    for _ in range(600):
        if journal.exists() and '"visit"' in journal.read_text():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 130, output
    report = decode((folder / "report.json").read_text())
    assert report.run.stopped == "interrupted"
    assert report.verdict == "inconclusive"
    assert any(c.status == "undecided" for mode in report.modes for c in mode.claims)


def test_a_bug_of_ours_is_one_line_that_says_where_the_traceback_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no\nidea")

    monkeypatch.setattr("auditor.audit.run_audit", broken)
    result = audit("run", "--adapter", "reference", *SMALL, "--report", str(tmp_path))
    refused(result, "internal error: RuntimeError: no;")
    assert str(tmp_path / "traceback.txt") in result.output
    assert "in broken" in (tmp_path / "traceback.txt").read_text()


def test_ctrl_c_before_there_is_anything_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("auditor.audit.run_audit", interrupted)
    result = audit("run", "--adapter", "reference", *SMALL)
    assert result.exit_code == 130
    assert result.output == "audit: interrupted; there is no report\n"


def test_a_file_of_the_librarys_name_does_not_stand_for_it(tmp_path: Path) -> None:
    """As `python -m auditor`, which puts the current directory first on the path, in the process of the audit itself."""
    saved(tmp_path, "import json\n" + TUTORIAL + "\nassert json.dumps\n", "json.py")
    done = subprocess.run(
        [sys.executable, "-m", "auditor", "run", "--adapter", "json.py", *SMALL, "--claims", "sequence-law"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert "nothing can be checked" in done.stderr, done.stderr
    assert done.returncode == 2
