"""What is promised: the claims, with stable ids, and what an adapter must offer for each to be checked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """One promise. `needs` are the interface methods any one of which can show it."""

    id: str
    promise: str
    explanation: str
    needs: tuple[str, ...]
    exact: bool = False
    """Judged without chance (one sighting is a violation), so it takes no share of the error rate."""


_ANY = ("sample", "verify", "speculate", "generate")

_CLAIMS = (
    Claim(
        "structure",
        "accepted drafts are a prefix; exactly one token follows; ids in range; nothing after",
        "A round's tokens are the accepted drafts, in order and without a gap, then one token of the sampler's own, then nothing. "
        "An answer of the wrong type or shape, an id outside the vocabulary, a round without a token or drafts that go on "
        "behind a rejection break it. It is judged on the answer's form; one sighting decides.",
        _ANY,
        exact=True,
    ),
    Claim(
        "support",
        "no token of target probability 0 is emitted",
        "A token that the target excludes must not be emitted. Sightings are counted; a conforming sampler may show one with at "
        "most the resolution of its random numbers (a uniform that is exactly 0), and evidence beyond that decides.",
        _ANY,
    ),
    Claim(
        "output-law",
        "the emitted tokens follow the target, jointly over positions",
        "At each position that a round reaches, given what was emitted before, the emitted token follows the target's law there. "
        "This is the losslessness of speculative decoding, whatever the acceptance rule. Drafts are drawn from q.",
        _ANY,
    ),
    Claim(
        "acceptance-law",
        "each draft x is accepted with the rule's probability, token by token and position by position",
        "For the rule `rejection` min(1, p(x)/q(x)) at each reached position, given the draft. A sampler can keep the output law "
        "and lose here: then it is slower than it should be, or follows another rule than it says.",
        ("sample", "verify"),
    ),
    Claim(
        "acceptance-rate",
        "the mean rate of acceptance is the rule's: sum min(p, q) for rejection, sum p q for match",
        "The same acceptances without looking at the draft: the rate at each reached position, drafts drawn from q.",
        ("sample", "verify"),
    ),
    Claim(
        "residual-law",
        "after a rejection the token follows the residual, max(p - q, 0) normalised",
        "The token that follows a rejection, position by position. Where p and q are equal to within the tolerance the residual "
        "may be empty in the implementation's arithmetic, and any fallback inside the target's support is legitimate.",
        ("sample", "verify"),
    ),
    Claim(
        "bonus-token",
        "when every draft was accepted exactly one more token follows, from p[gamma]",
        "A full round has gamma + 1 tokens and the last one follows p[gamma]. A round that ends with its own last draft is read "
        "as a missing bonus token where that draft cannot be rejected.",
        ("verify",),
    ),
    Claim(
        "round-length",
        "tokens per target pass match the exact law of the round's length",
        "The number of emitted tokens of a round, whose mean is 1 plus the sum of the products of the acceptance rates: the "
        "number that users measure as speed.",
        ("verify",),
    ),
    Claim(
        "position-alignment",
        "position i uses p[i] and q[i], not a neighbour's",
        "Bets on every off-by-one of the catalogue, over all events together. Since other faults can make such a bet gain too, it "
        "is called violated only where an alignment fault is also the best explanation.",
        ("verify",),
    ),
    Claim(
        "row-independence",
        "rows of a batch share no randomness, and row b uses row b's p, q and gamma",
        "Rows with equal inputs are compared across calls: under independence it is a fair coin whether outcomes match row by row "
        "or crosswise, whatever their law. In mixed batches, bets that a row was judged by its neighbour's p or q.",
        ("verify",),
    ),
    Claim(
        "seed-independence",
        "two seeds give independent draws",
        "Calls with equal inputs and different seeds are compared row by row and at small offsets: under independence it is a fair "
        "coin whether outcomes match aligned or swapped, whatever their law.",
        ("sample", "verify"),
    ),
    Claim(
        "seed-reproducibility",
        "one seed gives the same draws, where that is promised",
        "The same call twice with one seed has the same answer, unless the adapter says `reproducible = False`.",
        ("sample", "verify"),
        exact=True,
    ),
    Claim(
        "draft-law",
        "drafts follow the q that is reported",
        "The drafter's tokens against the draft law that verification used; a drafter that takes the argmax and reports a softmax "
        "fails here although drafter and verifier are each right alone.",
        ("speculate",),
    ),
    Claim(
        "draft-independence",
        "drafting and verification share no randomness",
        "Given the draft, the verification's events have the rule's law; noise that is shared with the drafter shows as a "
        "dependence.",
        ("speculate",),
    ),
    Claim(
        "exact-law",
        "acceptance, residual and bonus equal the theory to within the tolerance, without sampling",
        "Where the implementation's random numbers can be replaced its laws are compared with the theory's number by number.",
        ("law",),
        exact=True,
    ),
    Claim(
        "edge-cases",
        "p = q, disjoint supports, one-hot, zeros, 1e-30, V of 2 and of 128k: right, no NaN, no crash",
        "The explicit edge cases and the smallest inputs of known bugs, judged on their own, and every exception: a case that "
        "raises twice while an ordinary case passes violates it.",
        ("sample", "verify"),
    ),
    Claim(
        "greedy",
        "at temperature 0: the matching prefix, then the target's argmax",
        "Greedy verification is deterministic and is compared token by token.",
        ("generate",),
        exact=True,
    ),
    Claim(
        "settings-law",
        "temperature, top-k, top-p, min-p and penalties give the law of the same settings without speculation",
        "The target's law under the settings is computed from the known law and the outputs are judged against it.",
        ("generate",),
    ),
    Claim(
        "sequence-law",
        "generated sequences follow the target's own law jointly (cache rollback, positions, EOS, length cap)",
        "Whole generations on a model of known law, each next token given its prefix.",
        ("generate",),
    ),
    Claim(
        "counters",
        "reported drafted and accepted counts agree with the tokens",
        "What the engine reports of its rounds against what it emitted.",
        ("generate",),
        exact=True,
    ),
    Claim(
        "logprobs",
        "returned log-probabilities are the target's",
        "The numbers an engine returns with its tokens against the known law.",
        ("generate",),
        exact=True,
    ),
)

CLAIMS: dict[str, Claim] = {claim.id: claim for claim in _CLAIMS}


@dataclass(frozen=True)
class Offer:
    """What an adapter offers to look at."""

    methods: frozenset[str]
    shows_acceptance: bool = True
    """`sample` says which drafts were accepted."""
    reproducible: bool = True
    draft_residual: bool = False
    """The rule's residual depends on the draft, which `sample` does not show."""


def choose(offer: Offer, wanted: Collection[str] = ()) -> tuple[list[str], dict[str, str]]:
    """The claims that can be checked, in catalogue order, and the reason for each that cannot.

    `wanted` limits the choice; claims left out by the user are given as skipped too.
    """
    checked, skipped = [], {}
    for claim in CLAIMS.values():
        reason = _obstacle(claim, offer)
        if wanted and claim.id not in wanted:
            skipped[claim.id] = "not asked for"
        elif reason:
            skipped[claim.id] = reason
        else:
            checked.append(claim.id)
    return checked, skipped


def _obstacle(claim: Claim, offer: Offer) -> str:
    if not offer.methods & set(claim.needs):
        return f"needs {' or '.join(claim.needs)}, which the adapter does not have"
    if "verify" in offer.methods or "generate" in offer.methods:
        hidden = False
    else:
        hidden = claim.id in ("acceptance-law", "acceptance-rate", "residual-law") and not offer.shows_acceptance
    if hidden:
        return "sample returns tokens alone, not which drafts were accepted"
    if claim.id == "residual-law" and offer.draft_residual and "verify" not in offer.methods:
        return "the rule's residual depends on the draft, which sample does not show"
    if claim.id == "seed-reproducibility" and not offer.reproducible:
        return "the adapter does not promise it (reproducible = False)"
    return ""
