"""Settings as laws: each transform against a direct statement of what it means, and against Transformers' own processors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.adapter import Settings
from auditor.engines.requests import pick_settings, settings_strategy
from auditor.oracle import softmax
from auditor.settings import ENDINGS, TRANSFORMS, apply, changed, ending, gain

LOGITS = np.log(np.array([[0.4, 0.3, 0.2, 0.1]]))
CONTEXT = np.array([[0, 1, 2, 0, 1]])


def law(settings: Settings, context: np.ndarray = CONTEXT, start: int = 3) -> list[float]:
    out, _ = apply(LOGITS, context, start, settings)
    return softmax(out)[0].round(6).tolist()


def test_neutral_settings_change_nothing() -> None:
    assert law(Settings()) == [0.4, 0.3, 0.2, 0.1]
    assert changed(Settings()) == ()


def test_temperature() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1]) ** 2
    assert law(Settings(temperature=0.5)) == (p / p.sum()).round(6).tolist()


def test_top_k_keeps_the_most_probable() -> None:
    assert law(Settings(top_k=2)) == [round(4 / 7, 6), round(3 / 7, 6), 0, 0]
    assert law(Settings(top_k=9)) == [0.4, 0.3, 0.2, 0.1]


def test_top_p_keeps_the_fewest_that_reach_the_mass() -> None:
    assert law(Settings(top_p=0.6)) == [round(4 / 7, 6), round(3 / 7, 6), 0, 0]
    assert law(Settings(top_p=0.2)) == [1, 0, 0, 0]


def test_min_p_is_relative_to_the_largest() -> None:
    assert law(Settings(min_p=0.45)) == [round(4 / 9, 6), round(3 / 9, 6), round(2 / 9, 6), 0]


def test_a_cut_near_a_value_is_not_sure() -> None:
    for near in (Settings(top_p=0.7), Settings(min_p=0.5), Settings(min_p=0.25)):
        assert not apply(LOGITS, CONTEXT, 3, near)[1].any()
    tied = np.log(np.array([[0.4, 0.25, 0.25, 0.1]]))
    assert not apply(tied, CONTEXT, 3, Settings(top_k=2))[1].any()
    assert apply(LOGITS, CONTEXT, 3, Settings(top_k=2, top_p=0.6, min_p=0.3))[1].all()


def test_penalties() -> None:
    # Repetition counts the prompt, presence and frequency the new tokens (here 0 and 1) alone.
    raised = np.array([0.4**1.5, 0.3**1.5, 0.2**1.5, 0.1])
    assert law(Settings(repetition_penalty=1.5)) == (raised / raised.sum()).round(6).tolist()
    lowered = np.array([0.4 * np.exp(-1), 0.3 * np.exp(-1), 0.2, 0.1])
    assert law(Settings(presence_penalty=1.0)) == (lowered / lowered.sum()).round(6).tolist()
    twice = np.array([0.4 * np.exp(-2), 0.3, 0.2, 0.1])
    assert law(Settings(frequency_penalty=1.0), np.array([[0, 1, 2, 0, 0]])) == (twice / twice.sum()).round(6).tolist()


def test_bans() -> None:
    assert law(Settings(no_repeat_ngram=2))[2] == 0  # 1 was followed by 2
    assert law(Settings(no_repeat_ngram=3))[2] == 0  # 0, 1 was followed by 2
    assert law(Settings(bad_words=((3,), (1, 0), (2, 1))))[0] == 0
    assert law(Settings(bad_words=((3,), (1, 0), (2, 1))))[3] == 0
    assert law(Settings(bad_words=((3,), (1, 0), (2, 1))))[1] > 0
    assert law(Settings(eos=0, min_new_tokens=3))[0] == 0
    assert law(Settings(eos=0, min_new_tokens=2))[0] > 0


def test_bias_and_guidance() -> None:
    biased = np.array([0.4 * np.e, 0.3, 0.2, 0.1])
    assert law(Settings(logit_bias=((0, 1.0),))) == (biased / biased.sum()).round(6).tolist()
    free = np.log(np.full((1, 4), 0.25))
    out, _ = apply(LOGITS, CONTEXT, 3, Settings(guidance_scale=2.0), unconditional=free)
    squared = np.array([0.4, 0.3, 0.2, 0.1]) ** 2
    assert softmax(out)[0] == pytest.approx(squared / squared.sum())
    with pytest.raises(ValueError, match="unconditional"):
        apply(LOGITS, CONTEXT, 3, Settings(guidance_scale=2.0))


def test_only_listed_settings_are_applied_in_the_listed_order() -> None:
    both = Settings(temperature=0.5, top_p=0.75)
    assert softmax(apply(LOGITS, CONTEXT, 3, both, ("temperature", "top_p"))[0])[0, 2] == 0
    assert softmax(apply(LOGITS, CONTEXT, 3, both, ("top_p", "temperature"))[0])[0, 2] > 0
    assert softmax(apply(LOGITS, CONTEXT, 3, both, ("temperature",))[0])[0, 3] > 0


def test_ending() -> None:
    tokens = np.array([1, 2, 3, 1, 2])
    assert ending(tokens, Settings(), 5) == (5, "length")
    assert ending(tokens, Settings(), 4) == (4, "length")
    assert ending(tokens, Settings(eos=3), 5) == (3, "eos")
    assert ending(tokens, Settings(stop=((2, 3), (1, 2))), 5) == (2, "stop")
    assert ending(tokens, Settings(), 9) == (5, "")


def test_gain() -> None:
    assert gain(Settings()) == 1
    assert gain(Settings(temperature=0.5)) == 2
    assert gain(Settings(temperature=2.0, repetition_penalty=0.5)) == 2
    assert gain(Settings(guidance_scale=2.0)) == 3


def test_hypothesis_picks_each_setting_alone_and_combinations() -> None:
    names = (*TRANSFORMS, *ENDINGS)
    picked = pick_settings(names, 8, 6, 0)
    assert len(picked) == len(names) + 6
    assert picked == pick_settings(names, 8, 6, 0)
    alone = {changed(one)[0] for one in picked[: len(names)] if len(changed(one)) == 1}
    assert alone == set(names) - {"min_new_tokens"}
    assert all(len(changed(one)) >= 2 for one in picked[len(names) :])


_ORDER = ("logit_bias", "repetition_penalty", "no_repeat_ngram", "bad_words", "temperature", "top_k", "top_p", "min_p")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_combinations_agree_with_the_processors_of_transformers(data: st.DataObject) -> None:
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    names = data.draw(st.sets(st.sampled_from(_ORDER), min_size=1, max_size=4))
    chosen = data.draw(settings_strategy(sorted(names), 8))
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    logits, context = rng.normal(0, 2, (5, 8)), rng.integers(0, 8, (5, 7))
    made = process.LogitsProcessorList()
    if chosen.logit_bias:
        made.append(process.SequenceBiasLogitsProcessor([[[t], float(b)] for t, b in chosen.logit_bias]))
    if chosen.repetition_penalty != 1:
        made.append(process.RepetitionPenaltyLogitsProcessor(chosen.repetition_penalty))
    if chosen.no_repeat_ngram:
        made.append(process.NoRepeatNGramLogitsProcessor(chosen.no_repeat_ngram))
    if chosen.bad_words:
        made.append(process.NoBadWordsLogitsProcessor([list(w) for w in chosen.bad_words]))
    if chosen.temperature != 1:
        made.append(process.TemperatureLogitsWarper(chosen.temperature))
    if chosen.top_k:
        made.append(process.TopKLogitsWarper(chosen.top_k))
    if chosen.top_p < 1:
        made.append(process.TopPLogitsWarper(chosen.top_p))
    if chosen.min_p:
        made.append(process.MinPLogitsWarper(chosen.min_p))
    theirs = made(torch.tensor(context), torch.tensor(logits)).double().softmax(-1).numpy()
    ours, sure = apply(logits, context, 3, chosen, _ORDER)
    possible = sure & np.isfinite(ours).any(-1)
    assert np.allclose(softmax(ours[possible]), theirs[possible], atol=1e-6)
