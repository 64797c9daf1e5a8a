"""`audit checkpoint`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from auditor.commands.checkpoint import checkpoint


def test_it_writes_a_pair_and_says_where(tmp_path: Path) -> None:
    result = CliRunner().invoke(checkpoint, [str(tmp_path / "pair"), "--kind", "table", "--vocab", "6", "--seed", "2"])
    assert result.exit_code == 0, result.output
    for part in ("target", "draft"):
        assert str(tmp_path / "pair" / part) in result.output
        assert {p.name for p in (tmp_path / "pair" / part).iterdir()} == {
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        }
    assert json.loads((tmp_path / "pair" / "law.json").read_text())["vocab"] == 6


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    result = CliRunner().invoke(checkpoint, [str(tmp_path)])
    assert result.exit_code == 1
    assert "not empty" in result.output


def test_a_closeness_out_of_reach_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        checkpoint, [str(tmp_path / "x"), "--kind", "table", "--vocab", "2", "--closeness", "0.95"]
    )
    assert result.exit_code == 1
    assert "cannot be at a mean total variation" in result.output
