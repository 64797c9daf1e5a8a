"""The tiny samplers that audits are tried on: their answers are well formed, the right ones follow the exact law of a
round, and the wrong ones do not."""

from __future__ import annotations

import inspect
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from auditor.adapter import Settings
from auditor.cases import Case, family_case
from auditor.corpus import known_bugs
from auditor.rules import FAULTS
from tests.miniatures import CORRECT, FAULTY, KNOWN, UNLISTED

FLOOR = 1e-9
ROUNDS = 60_000

NAMED = {sampler.__name__: sampler for sampler in (*CORRECT, *FAULTY)}
WITH_VERIFY = [name for name, sampler in NAMED.items() if hasattr(sampler, "verify")]
WITH_SAMPLE = [name for name, sampler in NAMED.items() if hasattr(sampler, "sample")]
WITH_SPECULATE = [name for name, sampler in NAMED.items() if hasattr(sampler, "speculate")]
RIGHT = {sampler.__name__ for sampler in CORRECT}

P = np.array([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.35, 0.1, 0.3], [0.4, 0.05, 0.35, 0.2]])
Q = np.array([[0.2, 0.3, 0.1, 0.4], [0.35, 0.3, 0.2, 0.15], [0.3, 0.15, 0.35, 0.2]])
CASE = Case(P, Q, "four tokens", "simplex")
OTHER = Case(P[::-1], Q[::-1], "the same, backwards", "simplex")


def drafts_of(case: Case, n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng((seed, 77))
    return np.stack([rng.choice(case.vocab, size=n, p=law) for law in case.q], axis=1)


def call(sampler: type, p: np.ndarray, q: np.ndarray, drafts: np.ndarray, seed: int, **wanted: float) -> np.ndarray:
    """`verify`, with neutral settings where it takes settings."""
    settings = [Settings(**wanted)] * len(drafts)
    extra = (settings,) if getattr(sampler, "settings", ()) else ()
    return sampler().verify(p, q, drafts, seed, *extra)


def shared_laws(case: Case, n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.broadcast_to(case.p, (n, *case.p.shape)), np.broadcast_to(case.q, (n, *case.q.shape))


def mixed_laws(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two cases in turns: p, q and drafts."""
    turn = np.arange(n) % 2
    p, q = np.stack([CASE.p, OTHER.p])[turn], np.stack([CASE.q, OTHER.q])[turn]
    drafts = np.where(turn[:, None] == 0, drafts_of(CASE, n, 1), drafts_of(OTHER, n, 2))
    return p, q, drafts


def round_law(case: Case, rule: str) -> dict[tuple[int, ...], float]:
    """The exact probability of every possible round, for drafts from q."""
    padding = (-1,) * case.gamma
    law: dict[tuple[int, ...], float] = {}
    prefixes = {(): 1.0}
    for i in range(case.gamma):
        p, q = case.p[i], case.q[i]
        if rule == "rejection":
            accept, reject = np.minimum(p, q), np.maximum(p - q, 0.0)
        else:
            # x is drafted with q(x) and accepted with p(x); y follows with p(y) when any other token was drafted.
            accept, reject = p * q, p * (1 - q)
        for prefix, mass in prefixes.items():
            for y in range(case.vocab):
                law[(*prefix, y, *padding)[: case.gamma + 1]] = mass * reject[y]
        prefixes = {(*prefix, x): mass * accept[x] for prefix, mass in prefixes.items() for x in range(case.vocab)}
    for prefix, mass in prefixes.items():
        for y in range(case.vocab):
            law[(*prefix, y)] = mass * case.p[-1][y]
    return law


def p_value(rounds: np.ndarray, law: dict[tuple[int, ...], float], vocab: int) -> float:
    """Chi-square of whole rounds against their exact law; 0 where a round is impossible."""
    base = (vocab + 1) ** np.arange(rounds.shape[1])
    codes, counts = np.unique((rounds + 1) @ base, return_counts=True)
    expected = {int((np.array(outcome) + 1) @ base): mass for outcome, mass in law.items() if mass > 1e-12}
    if not set(codes.tolist()) <= set(expected):
        return 0.0
    seen = dict(zip(codes.tolist(), counts.tolist(), strict=True))
    observed = np.array([seen.get(code, 0) for code in expected])
    mean = len(rounds) * np.array(list(expected.values()))
    thin = mean < 10
    observed = np.append(observed[~thin], observed[thin].sum())
    mean = np.append(mean[~thin], mean[thin].sum())
    return float(stats.chisquare(observed[mean > 0], mean[mean > 0]).pvalue)


def test_the_exact_law_of_a_round_is_a_law() -> None:
    for rule in ("rejection", "onehot", "match"):
        assert sum(round_law(CASE, rule).values()) == pytest.approx(1)


# ------------------------------------------------------------------------------------------------ what they say


def test_names_and_attributes() -> None:
    assert len(NAMED) == len(CORRECT) + len(FAULTY)
    assert set(KNOWN) | set(UNLISTED) == set(FAULTY)
    for sampler in NAMED.values():
        assert inspect.getdoc(sampler)
        assert not sampler.fault or sampler.fault in FAULTS
    for sampler in CORRECT:
        assert not sampler.expected_claims
    for sampler in FAULTY:
        assert sampler.expected_claims
    for sampler in KNOWN:
        assert sampler.origin


def test_every_known_bug_below_the_engine_has_its_sampler() -> None:
    have = {part.strip() for sampler in FAULTY for part in sampler.origin.replace("vLLM 47386, ", "").split(", ")}
    for bug in known_bugs():
        if bug.level not in ("engine", "counters"):
            assert any(bug.reference.startswith(name) or name in bug.reference for name in have if name), bug.id


# ----------------------------------------------------------------------------------------------- how they answer


@pytest.mark.parametrize("name", WITH_VERIFY)
@pytest.mark.parametrize("laws", ["shared", "mixed", "one row"])
def test_verify_is_well_formed(name: str, laws: str) -> None:
    sampler = NAMED[name]
    n = 1 if laws == "one row" else 2000
    p, q = shared_laws(CASE, n)
    drafts = drafts_of(CASE, n, 0)
    if laws == "mixed":
        p, q, drafts = mixed_laws(n)
    tokens = call(sampler, p, q, drafts, 5)
    assert tokens.shape == (n, 4)
    assert tokens.dtype == np.int64
    length = (tokens >= 0).sum(1)
    assert (tokens >= -1).all()
    assert ((tokens >= 0) == (np.arange(4) < length[:, None])).all()
    if "structure" in sampler.expected_claims:
        return
    assert (tokens < 4).all()
    if sampler.expected_claims[:1] != ("bonus-token",):
        assert (length >= 1).all()
    before = np.arange(3) < length[:, None] - 1
    assert (tokens[:, :3] == drafts)[before].all()


@pytest.mark.parametrize("name", WITH_SAMPLE)
def test_sample_is_well_formed(name: str) -> None:
    answer = NAMED[name]().sample(P[0], Q[0], 500, 3)
    tokens, accepted = answer if isinstance(answer, tuple) else (answer, np.zeros(500, bool))
    assert tokens.shape == accepted.shape == (500,)
    assert tokens.dtype == np.int64
    assert accepted.dtype == bool
    assert ((tokens >= 0) & (tokens < 4)).all()


@pytest.mark.parametrize("name", WITH_SPECULATE)
def test_speculate_is_well_formed(name: str) -> None:
    answer = NAMED[name]().speculate(P, Q, 500, 3)
    assert answer.tokens.shape == (500, 4)
    assert answer.drafts.shape == (500, 3)
    length = (answer.tokens >= 0).sum(1)
    before = np.arange(3) < length[:, None] - 1
    assert (answer.tokens[:, :3] == answer.drafts)[before].all()
    assert (length >= 1).all()


@pytest.mark.parametrize("name", [name for name in WITH_VERIFY if name != "SeedFromTheSystem"])
def test_the_seed_decides(name: str) -> None:
    sampler = NAMED[name]
    p, q, drafts = mixed_laws(300)
    first = call(sampler, p, q, drafts, 11)
    assert np.array_equal(first, call(sampler, p, q, drafts, 11))
    if name not in ("IgnoresSeed", "AlwaysArgmax", "AcceptsWhereTargetIsLarger"):
        assert not np.array_equal(first, call(sampler, p, q, drafts, 12))


@pytest.mark.parametrize("name", [name for name in WITH_VERIFY if name not in ("SeedFromTheSystem", "ExponentialRace")])
def test_a_broadcast_view_is_the_same_as_its_copy(name: str) -> None:
    p, q = shared_laws(CASE, 400)
    drafts = drafts_of(CASE, 400, 0)
    view, copy = (call(NAMED[name], *laws, drafts, 2) for laws in ((p, q), (np.array(p), np.array(q))))
    assert np.array_equal(view, copy)


@pytest.mark.parametrize("name", WITH_VERIFY)
def test_a_large_vocabulary_is_never_copied_per_row(name: str) -> None:
    """256 rows of V = 32,000 would be 131 MB for p alone."""
    case = family_case("large-vocabulary", 32_000, 1, 0)
    p, q = shared_laws(case, 256)
    drafts = drafts_of(case, 256, 0)
    tracemalloc.start()
    tokens = call(NAMED[name], p, q, drafts, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tokens.shape == (256, 2)
    assert peak < 60e6


# ------------------------------------------------------------------------------------------------ the right ones


@pytest.mark.parametrize("name", [name for name in WITH_VERIFY if name in RIGHT])
def test_right_samplers_follow_the_exact_law(name: str) -> None:
    sampler = NAMED[name]
    law = round_law(CASE, sampler.rule)
    drafts = drafts_of(CASE, ROUNDS, 0)
    assert p_value(call(sampler, *shared_laws(CASE, ROUNDS), drafts, 7), law, 4) > FLOOR


@pytest.mark.parametrize("name", [name for name in WITH_VERIFY if name in RIGHT])
def test_right_samplers_follow_the_exact_law_in_a_mixed_batch(name: str) -> None:
    sampler = NAMED[name]
    tokens = call(sampler, *mixed_laws(2 * ROUNDS), 8)
    assert p_value(tokens[0::2], round_law(CASE, sampler.rule), 4) > FLOOR
    assert p_value(tokens[1::2], round_law(OTHER, sampler.rule), 4) > FLOOR


@pytest.mark.parametrize("name", [name for name in WITH_SPECULATE if name in RIGHT])
def test_right_samplers_follow_the_exact_law_with_their_own_drafts(name: str) -> None:
    sampler = NAMED[name]
    answer = sampler().speculate(P, Q, ROUNDS, 9)
    assert p_value(answer.tokens, round_law(CASE, sampler.rule), 4) > FLOOR
    for i in range(3):
        counts = np.bincount(answer.drafts[:, i], minlength=4)
        assert stats.chisquare(counts, ROUNDS * Q[i]).pvalue > FLOOR


@pytest.mark.parametrize("name", [name for name in WITH_SAMPLE if name in RIGHT])
def test_right_samplers_sample_the_target(name: str) -> None:
    sampler = NAMED[name]
    answer = sampler().sample(P[0], Q[0], ROUNDS, 10)
    tokens = answer[0] if isinstance(answer, tuple) else answer
    assert stats.chisquare(np.bincount(tokens, minlength=4), ROUNDS * P[0]).pvalue > FLOOR
    if isinstance(answer, tuple):
        due = np.minimum(P[0], Q[0]).sum() if sampler.rule == "rejection" else (P[0] * Q[0]).sum()
        assert stats.binomtest(int(answer[1].sum()), ROUNDS, due).pvalue > FLOOR


@pytest.mark.parametrize("name", sorted(RIGHT))
@pytest.mark.parametrize("family", ["one-hot", "disjoint", "sparse", "tiny", "near-equal"])
def test_right_samplers_at_the_edges(name: str, family: str) -> None:
    """No token without mass, no rejection without a reason, whatever the case."""
    sampler = NAMED[name]
    for seed in range(4):
        case = family_case(family, 6, 2, seed)
        drafts = drafts_of(case, 500, seed)
        if hasattr(sampler, "verify"):
            tokens = call(sampler, *shared_laws(case, 500), drafts, seed)
            for i in range(3):
                emitted = tokens[tokens[:, i] >= 0, i]
                assert (case.p[i, emitted] > 0).all()
        else:
            answer = sampler().sample(case.p[0], case.q[0], 500, seed)
            emitted = answer[0] if isinstance(answer, tuple) else answer
            assert (case.p[0, emitted] > 0).all()


def test_equal_laws_are_always_accepted() -> None:
    for name in ("InverseCdf", "Float32", "Float16", "ExponentialRace", "CounterBased"):
        p, _ = shared_laws(CASE, 1000)
        drafts = drafts_of(Case(P, P[:3], "equal", "edge"), 1000, 0)
        tokens = call(NAMED[name], p, p[:, :3], drafts, 0)
        assert np.array_equal(tokens[:, :3], drafts)


def test_ragged_batches() -> None:
    """A row of two drafts in a batch of three has the law of the shorter case."""
    short = Case(P[:3], Q[:2], "two drafts", "simplex")
    p, q = shared_laws(CASE, ROUNDS)
    drafts = drafts_of(CASE, ROUNDS, 3)
    drafts[0::2, 2] = -1
    tokens = call(NAMED["InverseCdf"], p, q, drafts, 4)
    assert (tokens[0::2, 3] == -1).all()
    assert p_value(tokens[0::2, :3], round_law(short, "rejection"), 4) > FLOOR
    assert p_value(tokens[1::2], round_law(CASE, "rejection"), 4) > FLOOR
    wrong = call(NAMED["BonusOfLongestRow"], p, q, drafts, 4)
    assert p_value(wrong[0::2, :3], round_law(short, "rejection"), 4) < FLOOR


# ------------------------------------------------------------------------------------------------ the wrong ones

SPECIAL = {
    "EmptyWhenGreedy",
    "EmptyAtTemperatureZero",
    "MinPOnBonusOnly",
    "MaskMissingOnBonus",
    "IgnoresSettings",
    "ReusesUniformPerTile",
    "NanResidual",
    "TruncatedTail",
    "EightBitUniforms",
    "IgnoresSeed",
    "SeedFromTheSystem",
    "BonusOfLongestRow",
    "RowsShareCoins",
    "RowsShareResidualNoise",
    "SeedsOverlap",
    "SeedMod16",
}
"""Wrong in a way that the law of a row on one small case does not show; each has its own test below."""


@pytest.mark.parametrize("name", [name for name in WITH_VERIFY if name not in RIGHT | SPECIAL])
def test_wrong_samplers_leave_the_exact_law(name: str) -> None:
    sampler = NAMED[name]
    tokens = call(sampler, *mixed_laws(2 * ROUNDS), 21)
    values = [p_value(tokens[k::2], round_law(case, sampler.rule), 4) for k, case in enumerate((CASE, OTHER))]
    assert min(values) < FLOOR


@pytest.mark.parametrize("name", [name for name in WITH_SAMPLE if name not in RIGHT])
def test_wrong_drafters_leave_the_target(name: str) -> None:
    tokens, _ = NAMED[name]().sample(P[0], Q[0], ROUNDS, 22)
    assert stats.chisquare(np.bincount(tokens, minlength=4), ROUNDS * P[0]).pvalue < FLOOR


def test_published_numbers() -> None:
    """The biases that the corpus states for its smallest inputs."""
    bugs = {bug.id: bug.case for bug in known_bugs()}

    def share(sampler: str, bug: str, token: int) -> float:
        case = bugs[bug]
        tokens = call(NAMED[sampler], *shared_laws(case, ROUNDS), drafts_of(case, ROUNDS, 0), 0)
        return float((tokens[:, 0] == token).mean())

    def drafted(sampler: str, bug: str, token: int) -> float:
        case = bugs[bug]
        return float((NAMED[sampler]().sample(case.p[0], case.q[0], ROUNDS, 0)[0] == token).mean())

    # Seven standard deviations of a share of 60,000 are at most .0143.
    assert share("ReusesCoin", "sglang-7207", 1) == pytest.approx(0.1, abs=0.01)
    assert drafted("ArgmaxDrafts", "transformers-32867", 0) == pytest.approx(0.8333, abs=0.0143)
    assert drafted("SharedGumbel", "vllm-47386", 2) == pytest.approx(0.2727, abs=0.0143)
    assert share("ZeroUniform", "vllm-ascend-13730", 0) == 1
    assert share("WrongSlice", "tensorrt-llm-15098", 1) == 1


def test_a_uniform_used_again_inside_a_tile() -> None:
    """p has half of its mass in the last tile, which a uniform of at least .5 chooses, and then only the tile's second half."""
    found = {bug.id: bug.case for bug in known_bugs()}["flashinfer-424"]
    case = Case(found.p, found.p[:1], "every draft is right", "corpus")
    drafts = drafts_of(case, 4000, 1)
    for name, least in (("InverseCdf", case.vocab - 1024), ("ReusesUniformPerTile", case.vocab - 512)):
        bonus = call(NAMED[name], *shared_laws(case, 4000), drafts, 0)[:, 1]
        late = bonus[bonus >= case.vocab - 1024]
        assert len(late) > 1500
        assert least <= late.min() < least + 100


def test_eight_bits_do_not_reach_a_rare_token() -> None:
    case = Case(np.array([[0.5, 0.5], [0.998, 0.002]]), np.array([[0.5, 0.5]]), "rarer than 1/256", "simplex")
    for name, reached in (("InverseCdf", True), ("EightBitUniforms", False)):
        tokens = call(NAMED[name], *shared_laws(case, ROUNDS), drafts_of(case, ROUNDS, 0), 0)
        assert (tokens[:, 1] == 1).any() == reached


def test_a_truncated_tail_is_never_emitted() -> None:
    p = np.array([[0.9995, 0.0005], [0.5, 0.5]])
    case = Case(p, np.array([[1.0, 0.0]]), "a tail of 5e-4", "simplex")
    tokens = call(
        NAMED["TruncatedTail"], *shared_laws(Case(p[[1, 0]], p[1:], "", ""), ROUNDS), drafts_of(case, ROUNDS, 0), 0
    )
    assert not (tokens[:, 1] == 1).any()


def test_empty_rounds_of_greedy_targets() -> None:
    case = Case(np.eye(3)[[0, 1]], np.full((1, 3), 1 / 3), "one-hot", "edge")
    tokens = call(NAMED["EmptyWhenGreedy"], *shared_laws(case, 50), drafts_of(case, 50, 0), 0)
    assert (tokens == -1).all()
    tokens = call(NAMED["EmptyAtTemperatureZero"], *shared_laws(CASE, 50), drafts_of(CASE, 50, 0), 0, temperature=0.0)
    assert (tokens == -1).all()


def test_nan_where_the_laws_are_equal() -> None:
    case = Case(P, P[:3], "equal", "edge")
    with pytest.raises(ValueError, match="NaN"):
        call(NAMED["NanResidual"], *shared_laws(case, 5), drafts_of(case, 5, 0), 0)
    drafts = drafts_of(CASE, 500, 0)
    laws = shared_laws(CASE, 500)
    assert np.array_equal(call(NAMED["NanResidual"], *laws, drafts, 0), call(NAMED["InverseCdf"], *laws, drafts, 0))


def cut(p: np.ndarray, wanted: Settings) -> np.ndarray:
    """The target under temperature and then min-p, written out."""
    law = p ** (1 / wanted.temperature)
    law = law / law.sum(1, keepdims=True)
    law = np.where(law >= wanted.min_p * law.max(1, keepdims=True), law, 0)
    return law / law.sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("name", "right"),
    [("HonoursSettings", True), ("MinPOnBonusOnly", False), ("MaskMissingOnBonus", False), ("IgnoresSettings", False)],
)
def test_settings(name: str, right: bool) -> None:
    wanted = Settings(temperature=0.8, min_p=0.3)
    case = Case(cut(P, wanted), Q, "under settings", "simplex")
    p, q = shared_laws(CASE, ROUNDS)
    tokens = call(NAMED[name], p, q, drafts_of(CASE, ROUNDS, 0), 0, temperature=0.8, min_p=0.3)
    assert (p_value(tokens, round_law(case, "rejection"), 4) > FLOOR) == right


def test_settings_of_each_row() -> None:
    """Greedy and random rows in one batch."""
    p, q = shared_laws(CASE, 2 * ROUNDS)
    settings = [Settings(), Settings(temperature=0.0)] * ROUNDS
    drafts = drafts_of(CASE, 2 * ROUNDS, 0)
    tokens = NAMED["HonoursSettings"]().verify(p, q, drafts, 3, settings)
    assert p_value(tokens[0::2], round_law(CASE, "rejection"), 4) > FLOOR
    best = P.argmax(1)
    emitted = tokens[1::2]
    assert np.isin(emitted[:, 0], best[0]).all()
    assert ((emitted == best) | (emitted == -1)).all()


def test_rows_that_share_randomness() -> None:
    p, q = shared_laws(CASE, 1000)
    drafts = np.tile([3, 0, 2], (1000, 1))
    right = call(NAMED["InverseCdf"], p, q, drafts, 0)
    assert len(np.unique((right >= 0).sum(1))) > 1
    coins = call(NAMED["RowsShareCoins"], p, q, drafts, 0)
    assert len(np.unique((coins >= 0).sum(1))) == 1
    noise = call(NAMED["RowsShareResidualNoise"], p, q, drafts, 0)
    length = (noise >= 0).sum(1)
    for n in np.unique(length):
        assert len(np.unique(noise[length == n], axis=0)) == 1


def test_seeds() -> None:
    p, q = shared_laws(CASE, 1000)
    drafts = np.tile([3, 0, 2], (1000, 1))

    def tokens(name: str, seed: int) -> np.ndarray:
        return call(NAMED[name], p, q, drafts, seed)

    assert np.array_equal(tokens("IgnoresSeed", 1), tokens("IgnoresSeed", 2))
    assert not np.array_equal(tokens("SeedFromTheSystem", 1), tokens("SeedFromTheSystem", 1))
    assert np.array_equal(tokens("SeedMod16", 3), tokens("SeedMod16", 19))
    assert np.array_equal(tokens("SeedsOverlap", 5)[1:], tokens("SeedsOverlap", 6)[:-1])
    assert not np.array_equal(tokens("CounterBased", 5)[1:], tokens("CounterBased", 6)[:-1])


def test_lower_acceptance_is_lossless() -> None:
    """The output's law over two tokens is the target's although fewer drafts are kept."""
    drafts = drafts_of(CASE, ROUNDS, 0)
    laws = shared_laws(CASE, ROUNDS)
    tokens, right = call(NAMED["LowerAcceptance"], *laws, drafts, 0), call(NAMED["InverseCdf"], *laws, drafts, 0)
    assert stats.chisquare(np.bincount(tokens[:, 0], minlength=4), ROUNDS * P[0]).pvalue > FLOOR
    assert (tokens >= 0).sum() < 0.97 * (right >= 0).sum()
