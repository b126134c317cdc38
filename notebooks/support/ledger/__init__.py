"""A ledger of published claims about distributed training, each run again here: `make ledger`.

A claim is a function of about ten lines. It says what it saw, and for each setting that it tried whether the claim
holds there; from that follows the verdict. So you write one of your own, in a notebook or in a file beside these:

    from support.ledger import Observation, claim

    @claim(
        "Twice the micro-batches halve the bubble",
        "a slide of mine",
        "https://example.org/slide",
        "2 m micro-batches leave half of the share of all time that is idle with m.",
    )
    def twice_halves(n: int = 4, m: int = 8) -> Observation:
        one = bubble_share(m, n)
        two = bubble_share(2 * m, n)
        return Observation(f"the bubble falls from {one:.0%} to {two:.0%}", {f"m = {m}": two <= one / 2})

    print(twice_halves)                # runs it, and prints source, claim, what it saw and the verdict
    print(twice_halves(m=64).verdict)  # an assumption moved: does the verdict turn?

What the function assumes are its parameters, with defaults. A claim that is to stay goes into the file of its theme
(THEMES of support.ledger.entries); a test beside those of tests/support/test_ledger.py moves an assumption until
the verdict turns. `make ledger UPDATE=1` then stores what it says in notebooks/recorded/ledger.json.
"""

from support.ledger.book import Claim as Claim
from support.ledger.book import Observation as Observation
from support.ledger.book import claim as claim
