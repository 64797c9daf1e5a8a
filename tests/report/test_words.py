"""Numbers and judgements in words."""

from __future__ import annotations

import math

import pytest

from auditor import results
from auditor.report import words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (1 / 3, "0.3333"),
        (0.5, "0.5"),
        (1.0, "1"),
        (1e-30, "1e-30"),
        (6871.2, "6,871"),
        (None, "–"),
        (-0.25, "-0.25"),
    ],
)
def test_numbers_are_round(value: float | None, shown: str) -> None:
    assert words.number(value) == shown


def test_cells_of_a_column_do_not_hide_small_probabilities() -> None:
    shown = [words.cell(value) for value in (0.0, 1.0, 0.25, 0.03598, 0.0005, 0.00004, 1e-30, None)]
    assert shown == ["0", "1", "0.2500", "0.0360", "0.0005", "4e-05", "1e-30", "–"]
    assert [words.gap(value) for value in (0.0, 0.5, -0.25)] == ["0", "+0.5000", "−0.2500"]


def test_p_values_know_the_end_of_double_precision() -> None:
    assert words.p_value(0.0) == "p < 1e-300"
    assert words.p_value(0.4321) == "p = 0.43"


@pytest.mark.parametrize(
    ("exponent", "shown"),
    [(6.0, "1,000,000"), (6.79, "6,000,000"), (0.0, "1"), (1.0, "10"), (7.0, "10⁷"), (17.9, "10¹⁷"), (179.2, "10¹⁷⁹")],
)
def test_large_numbers_are_rounded_down(exponent: float, shown: str) -> None:
    assert words.power_of_ten(exponent) == shown


def test_alpha_is_said_exactly() -> None:
    for alpha, shown in ((1e-6, "1 in 1,000,000"), (0.01, "1 in 100"), (0.05, "1 in 20"), (1e-9, "1 in 10⁹")):
        assert words.error_rate(alpha).endswith(f"{shown}.")


def test_how_sure_is_the_bound_of_ville_over_all_claims(violated: results.Report) -> None:
    finding, alpha = violated.findings[0], violated.run.alpha
    bound = alpha * math.exp(finding.threshold - finding.evidence)
    assert 1e-10 < bound < 1e-9
    assert words.how_sure(finding, alpha).endswith("at most 1 audit in 10⁹.")


def test_what_is_seen_directly_needs_no_statistics() -> None:
    finding = results.Finding("F1", "structure", "It answers floats", "…", evidence=0.0, threshold=0.0)
    assert "directly" in words.how_sure(finding, 1e-6)


def test_a_long_law_is_cut_and_says_so() -> None:
    assert words.law([0.5, 0.25, 0.25]) == "(0.5, 0.25, 0.25)"
    assert words.law([0.001] * 1000, limit=2) == "(0.001, 0.001, … 998 more)"


def test_the_laws_of_a_case_come_in_the_order_of_the_round() -> None:
    case = results.CaseData("", 2, 2, "d", p=[[1, 0], [0, 1], [1, 0]], q=[[0, 1], [1, 0]])
    assert [name for name, _ in words.case_rows(case)] == ["p[0]", "q[0]", "p[1]", "q[1]", "p[2]"]
    assert [name for name, _ in words.case_rows(results.CaseData("", 2, 1, "d", p=[[1, 0]], q=[[0, 1]]))] == ["p", "q"]
    assert "3 more laws" in words.case_left_out(case, limit=2)
    assert "digest is d" in words.case_left_out(results.CaseData("", 128_000, 4, "d"))


def test_a_diagnosis_is_a_name_only_where_it_fits() -> None:
    unlisted = results.Diagnosis("unlisted", "", None, 3.0, 1e-9)
    assert words.diagnosis(unlisted) == [
        "No listed fault explains it.",
        "The best listed fault does not fit fresh data (p = 1e-09).",
    ]
    named = results.Diagnosis("bonus-draft", "The bonus token comes from the draft.", 0.1, 0.0, 0.5, [], ["bonus-x"])
    said = words.diagnosis(named)
    assert said[0].endswith("[bonus-draft, in about 10 % of events]")
    assert said[1:] == ["It fits fresh data (p = 0.5).", "No case of this run tells it apart from: bonus-x."]


def test_the_assurance_counts_from_rare_to_always() -> None:
    entries = [results.Assurance(f"f{k}", value) for k, value in enumerate((0.0005, 0.01, 0.5, None))]
    assert [count for _, count in words.assurance(entries)] == [1, 2, 2, 3]
    assert words.assurance_line(entries).endswith("could be missed: f3.")
    assert words.assurance_line([]) == ""


def test_a_diagnosis_is_told_once(violated: results.Report) -> None:
    mode = violated.modes[0]
    first, second = mode.findings
    assert words.told_before(mode, first, "diagnosis") is None
    assert words.told_before(mode, second, "diagnosis") is first


def test_headlines(violated: results.Report, conforming: results.Report) -> None:
    assert words.headline(violated) == "step breaks 2 of 10 promises"
    assert words.headline(conforming) == "reference conforms: 20 claims checked in 2 modes, none violated"


def test_clean_takes_what_a_terminal_would_act_on() -> None:
    assert words.clean("\x1b[31mred\x1b[0m \x1b]0;title\x07\x00\u202e\ud800 a\tb\r\nc") == "red ��� a\tb\nc"
