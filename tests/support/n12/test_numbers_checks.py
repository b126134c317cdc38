"""What is said of random numbers for each pair, exercise 4: other right answers, and wrong ones."""

from functools import cache
from threading import Lock

import pytest
import torch

from lib.pipeline import is_recomputing
from support.kit.mistakes import edited
from support.n12 import checks as n12
from support.n12 import numbers
from support.n12.given import drawing_from
from support.n12.solved import Numbers

# ---- exercise 4


def by_counting(m, n):
    """Number the pairs from a base that the process's generator gives: no table."""
    base = int(torch.randint(2**60, ()))

    class Own:
        def __init__(self, layer, number):
            self.layer = layer
            self.number = number

        def __call__(self, x):
            generator = torch.Generator()
            generator.manual_seed(base + self.number)
            with drawing_from(generator):
                return self.layer(x)

    return type("Pairs", (), {"wrap": lambda _, layer, i, j: Own(layer, i * n + j)})()


@pytest.mark.costly
def test_numbers_that_are_counted_from_a_base_pass():
    class Counted:
        def __init__(self, m, n):
            self.pairs = by_counting(m, n)

        def wrap(self, layer, i, j):
            return self.pairs.wrap(layer, i, j)

    assert n12.check_numbers(Counted)


class DrawnInWrap:
    """Draw a pair's seed when its layer is wrapped, in the caller's thread."""

    def __init__(self, m, n):
        self.m = m

    def wrap(self, layer, i, j):
        seed = torch.randint(2**40, ()).item()

        def run(x):
            with drawing_from(torch.Generator().manual_seed(seed)):
                return layer(x)

        return run


class AGeneratorPerPair(Numbers):
    def wrap(self, layer, i, j):
        own = torch.Generator()

        def run(x):
            with drawing_from(own.manual_seed(self.seeds[i][j])):
                return layer(x)

        return run


class DrawnInWrapOnly(DrawnInWrap):
    def __init__(self, m, n): ...


@pytest.mark.costly
@pytest.mark.parametrize("answer", [DrawnInWrap, DrawnInWrapOnly, AGeneratorPerPair])
def test_a_seed_may_be_drawn_in_wrap_and_a_generator_set_anew(answer):
    assert n12.check_numbers(answer)


OWN = "with drawing_from(torch.Generator().manual_seed(self.seeds[i][j])):"
PUT_BACK = """before = torch.get_rng_state()
            torch.manual_seed(self.seeds[i][j])
            y = layer(x)
            torch.set_rng_state(before)
            return y
            if True:"""
GIVEN = "self.seeds = torch.randint(2**62, (m, n)).tolist()"
FROM_A_COUNTER = """type(self).steps = getattr(type(self), "steps", 0) + 1
        base = torch.initial_seed() + 1000 * self.steps
        self.seeds = [[base + i * n + j for j in range(n)] for i in range(m)]"""
GOES_ON = "A generator goes on from where it stood"


@pytest.mark.parametrize(
    "edits, says",
    [
        ([(OWN, PUT_BACK)], "the generator of the whole process stands elsewhere while the layer runs"),
        (
            [("self.seeds[i][j]", "self.seeds[0][0] % 2**31 + (i << 32) + j")],
            "All micro-batches share the numbers of a partition.",
        ),
        (
            [("tolist()", "tolist()\n        self.own = torch.Generator()"), ("torch.Generator().m", "self.own.m")],
            "one of them draws another mask than when it ran alone",
        ),
        (
            [
                ("tolist()", "tolist()\n        self.own = [torch.Generator() for _ in range(n)]"),
                ("torch.Generator().m", "self.own[j].m"),
            ],
            "micro-batch 1 in partition 1 and micro-batch 0 in partition 1 run at the same time",
        ),
        (
            [
                ("tolist()", "tolist()\n        self.own = [torch.Generator() for _ in range(m)]"),
                ("torch.Generator().m", "self.own[i].m"),
            ],
            "micro-batch 1 in partition 1 and micro-batch 1 in partition 2 run at the same time",
        ),
        (
            [
                (
                    "tolist()",
                    "tolist()\n        self.own = [[torch.Generator().manual_seed(s) for s in r] for r in self.seeds]",
                ),
                ("torch.Generator().manual_seed(self.seeds[i][j])", "self.own[i][j]"),
            ],
            GOES_ON,
        ),
        (
            [("manual_seed(self.seeds[i][j])", "manual_seed(torch.randint(2**40, ()).item())")],
            "the call, beside the layer, has moved the generator",
        ),
        (
            [
                (
                    "torch.randint(2**62, (m, n)).tolist()",
                    "[[torch.initial_seed() + 9 * i + j for j in range(n)] for i in range(m)]",
                )
            ],
            "each step needs seeds of its own",
        ),
        (
            [
                ("torch.randint(2**62, (m, n)).tolist()", "int(torch.randint(1000, ()))\n        self.n = n"),
                ("self.seeds[i][j]", "self.seeds + i * self.n + j"),
            ],
            "in a run of 1000 steps, step",
        ),
        ([(GIVEN, GIVEN.replace("self", "type(self)"))], "each step needs seeds of its own, drawn from many."),
        (
            [("torch.Generator().m", "torch.m")],
            "the layer has moved the generator of the whole process, from which others draw, too. All threads share",
        ),
        ([(OWN, "with drawing_from(torch.default_generator):")], "the layer has moved the generator of the whole"),
        (
            [
                ("tolist()", "tolist()\n        self.own = [torch.Generator() for _ in range(m + n)]"),
                ("torch.Generator().m", "self.own[i + j].m"),
            ],
            "do they share a generator? Where pairs share one, another thread may set it anew",
        ),
        (
            [("(self.seeds[i][j])", "(self.seeds[i][j] + len(layer.masks))")],
            "A seed that is made inside the call is another one in the recompute.",
        ),
        (
            [("self.seeds[i][j]", "layer.seed"), ("def run", "layer.seed = self.seeds[i][j]\n\n        def run")],
            "micro-batch 0 in partition 0 and micro-batch 1 in partition 0 draw the same mask; 192 pairs have 12 masks",
        ),
        ([(GIVEN, FROM_A_COUNTER)], "Seeds from elsewhere than torch's generator, or a counter that goes on"),
    ],
)
def test_what_shares_a_generator_or_a_seed_is_told_so(edits, says):
    verdict = n12.check_numbers(edited(Numbers, *edits))
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert says is GOES_ON or GOES_ON not in verdict.message
    assert "Nothing that changes" not in verdict.message


def from_a_base(below, seed="self.seeds + i * self.n + j"):
    """Make an answer that draws one number a step and reckons the seeds of its pairs from it."""
    drawn = f"int(torch.randint({below}, ()))\n        self.n = n"
    return edited(Numbers, ("torch.randint(2**62, (m, n)).tolist()", drawn), ("self.seeds[i][j]", seed))


STRETCHED = "(self.seeds * 2654435761 + i * self.n + j) % 2**63"


@pytest.mark.parametrize("below", ["2**22 + 5", "10**7", "2**24", "2**24 - 3", "2**27"])
def test_a_base_from_so_few_that_runs_mostly_pass_is_found_by_the_spread_of_its_seeds(below):
    verdict = n12.check_numbers(from_a_base(below))
    assert verdict.status == "wrong"
    assert "drawn from so few, two of them are equal" in verdict.message or "in a run of 1000 steps" in verdict.message


@pytest.mark.costly
@pytest.mark.parametrize("below", ["10**7", "2**24"])
def test_few_bases_are_found_too_where_their_seeds_lie_far_apart(below):
    verdict = n12.check_numbers(from_a_base(below, STRETCHED))
    assert verdict.status == "wrong"
    assert "times the mask of an earlier step" in verdict.message


@pytest.mark.costly
@pytest.mark.parametrize("seed", ["self.seeds * 64 + i * self.n + j", "(self.seeds * (i * self.n + j + 1)) % 2**63"])
def test_seeds_of_which_the_number_of_pairs_takes_bits_are_found(seed):
    verdict = n12.check_numbers(from_a_base("2**32", seed))
    assert verdict.status == "wrong"
    assert "in steps of 8 micro-batches and 8 partitions" in verdict.message
    assert "drawn from so few, two of them are equal in one of 1" in verdict.message


def test_a_seed_that_only_one_pair_repeats_is_not_said_to_be_the_same_in_all():
    verdict = n12.check_numbers(from_a_base("2**32", "self.seeds * (i * self.n + j)"))
    assert "micro-batch 0 in partition 0 draws the mask of this step again" in verdict.message
    assert "Nothing that changes" not in verdict.message


def test_a_base_in_bits_that_no_generator_reads_is_told_what_is_true_of_it():
    message = n12.check_numbers(from_a_base("2**31", "(self.seeds << 32) + i * self.n + j")).message
    assert "Nothing that changes from step to step reaches the generator" in message


@pytest.mark.parametrize("hashed", ['f"{self.seeds}, {i}, {j}"', '("Numbers", self.seeds, i, j)'])
def test_a_hash_of_a_text_which_is_another_one_in_every_process_is_told(hashed):
    message = n12.check_numbers(from_a_base("2**62", f"hash({hashed}) % 2**63")).message
    assert "in another process" in message
    assert "Seeds from elsewhere" not in message


class FirstNumberLeftOut(Numbers):
    def wrap(self, layer, i, j):
        def run(x):
            own = torch.Generator().manual_seed(self.seeds[i][j])
            torch.rand(1, generator=own)
            with drawing_from(own):
                return layer(x)

        return run


class AdvancedByHand:
    """Let every pair go on from the state of the process's generator, each from another place of its sequence."""

    def __init__(self, m, n):
        self.state = torch.get_rng_state()
        self.n = n
        torch.rand(1000 * m * n)

    def wrap(self, layer, i, j):
        def run(x):
            own = torch.Generator()
            own.set_state(self.state)
            torch.rand(1000 * (i * self.n + j), generator=own)
            with drawing_from(own):
                return layer(x)

        return run


@pytest.mark.costly
@pytest.mark.parametrize(
    "answer",
    [
        from_a_base("2**31", STRETCHED),
        FirstNumberLeftOut,
        edited(Numbers, ("2**62", "5 * 10**8")),  # two of a thousand are equal in one of 1,001 runs
    ],
)
def test_seeds_enough_for_a_thousand_runs_pass_and_so_does_a_state_that_is_not_fresh(answer):
    assert n12.check_numbers(answer), n12.check_numbers(answer)


SHIFTED = "micro-batch 0 in partition 0, step 0: what micro-batch 0 in partition "
PAIR_BY_SEED = [
    ("own.set_state(self.state)", "own.manual_seed(i * self.n + j)"),
    ("torch.rand(1000 * m * n)", "self.skip = 500 - torch.randint(500, ()).item()"),
    ("1000 * (i * self.n + j)", "self.skip"),
]


@pytest.mark.parametrize(
    "edits, where",
    [
        ([("1000 * (i", "(i"), ("1000 * m * n", "1")], "1, step 0 draws is in it, from place 1 on"),
        ([("1000", "64")], "1, step 0 draws is in it, from place 64 on"),
        ([], "1, step 0 draws is in it, from place 1000 on"),
        ([("1000", "100_000")], "1, step 0 draws is in it, from place 100000 on"),
        ([("1000 * (i", "x.numel() * (i")], "1, step 0 draws is in it, from place 64 on"),
        (PAIR_BY_SEED, "0, step 1 draws is in it, from place "),
    ],
)
def test_pairs_whose_numbers_another_pair_draws_further_on_in_a_large_layer_are_told(edits, where):
    verdict = n12.check_numbers(edited(AdvancedByHand, *edits) if edits else AdvancedByHand)
    assert verdict.status == "wrong"
    assert SHIFTED + where in verdict.message


class LeftAlone(Numbers):
    def wrap(self, layer, i, j):
        with drawing_from(torch.Generator().manual_seed(self.seeds[i][j])):
            return layer


def test_a_layer_that_was_left_to_the_generator_of_the_process_is_not_told_of_a_manual_seed():
    verdict = n12.check_numbers(LeftAlone)
    assert "the layer has moved the generator of the whole process" in verdict.message
    assert "manual_seed" not in verdict.message


@pytest.mark.parametrize(
    "seed", ["self.seeds + j * self.n + i", "self.seeds + 10 * i + j", 'int(f"{self.seeds}{i}{j}")']
)
def test_pairs_that_share_a_seed_only_where_there_are_more_of_them_are_told(seed):
    message = n12.check_numbers(from_a_base("2**31", seed)).message
    assert "in a step of 16 micro-batches and 12 partitions, micro-batch" in message
    assert "draw the same mask" in message


@pytest.mark.parametrize(
    "seed, where",
    [
        ("self.seeds + 200 * i + j", "in a step of 2 micro-batches and 450 partitions"),
        ("self.seeds + 400 * j + i", "in a step of 450 micro-batches and 2 partitions"),
    ],
)
def test_pairs_that_share_a_seed_only_where_there_are_more_than_a_hundred_are_told(seed, where):
    message = n12.check_numbers(from_a_base("2**31", seed)).message
    assert where in message
    assert "draw the same mask" in message


def test_who_puts_the_generator_of_the_process_back_undoes_what_others_drew():
    edit = ("with drawing_from", "with torch.random.fork_rng(devices=[]), drawing_from")
    message = n12.check_numbers(edited(Numbers, edit)).message
    assert "another thread draws from the generator of the whole process while the layer runs" in message


def test_a_cpus_generator_reads_32_bits_of_a_seed():
    low, high = (torch.rand(3, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5 + 2**32))
    assert torch.equal(low, high), "the notebook says so, and the check counts by it"


def test_pairs_of_a_clock_that_wait_for_each_other_are_told(monkeypatch):
    monkeypatch.setattr(numbers, "PATIENCE", 0.2)
    shared = "tolist()\n        self.own = torch.Generator()\n        self.lock = Lock()"
    turns = "with self.lock, drawing_from(self.own.manual_seed(self.seeds[i][j])):"
    message = n12.check_numbers(edited(Numbers, ("tolist()", shared), (OWN, turns), names={"Lock": Lock})).message
    assert "micro-batch 1 in partition 1 and micro-batch 0 in partition 2 do not run at the same time" in message


def test_the_check_leaves_torchs_generator_as_it_was():
    before = torch.get_rng_state()
    n12.check_numbers(Numbers)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("return run", "return run(torch.ones(64))", "wrap is to return a function of x, not Tensor"),
        ("return run", "return None", "wrap returned None"),
        ("return layer(x)", "return x", "the layer was never called"),
        ("def run(x)", "@cache\n        def run(x)", "in the second call, the recompute, the layer was not called"),
        ("return layer(x)", "return layer(x) * 2", "the output is not that of the layer"),
        ("[i][j]", "[0][0]", "micro-batch 0 in partition 0 and micro-batch 0 in partition 1 draw the same mask; 12"),
        ("self.seeds[i][j]", "self.seeds[0][0] + 3 * i + j", "micro-batch 0 in partition 3 and micro-batch 1"),
        (
            "with drawing_from(torch.Generator().manual_seed(self.seeds[i][j])):",
            "if True:",
            "the layer has moved the generator of the whole process",
        ),
        ("return layer(x)", "return layer(x, i)", "your code raised TypeError"),
        ("with d", "if again():\n                return layer(x)\n            with d", "from that of the process."),
        ("return layer(x)", "return layer(x.detach())", "the output has lost its way back to x"),
        ("return layer(x)", "return (layer(x), layer(x))[0]", "the layer was called 2 ×, not once"),
    ],
)
def test_other_wrong_numbers_are_told_what_is_seen(old, new, says):
    verdict = n12.check_numbers(edited(Numbers, (old, new), names={"cache": cache, "again": is_recomputing}))
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_a_generator_for_forward_and_one_for_the_recompute_are_not_called_shared():
    class TwoEach:
        def __init__(self, m, n):
            self.inside = Numbers(m, n)

        def wrap(self, layer, i, j):
            seed = self.inside.seeds[i][j]
            first, again = (torch.Generator().manual_seed(seed) for _ in range(2))

            def run(x):
                with drawing_from(again if is_recomputing() else first):
                    return layer(x)

            return run

    message = n12.check_numbers(TwoEach).message
    assert "the third call, another recompute, does not begin where the first one began" in message
    assert "share" not in message


def test_who_puts_a_generator_back_where_layers_compute_again_passes():
    class PutBack:
        def __init__(self, m, n):
            self.inside = Numbers(m, n)

        def wrap(self, layer, i, j):
            own = torch.Generator().manual_seed(self.inside.seeds[i][j])
            start = own.get_state()

            def run(x):
                if is_recomputing():
                    own.set_state(start)
                with drawing_from(own):
                    return layer(x)

            return run

    assert n12.check_numbers(PutBack)


class StateOnTheLayer(Numbers):
    def wrap(self, layer, i, j):
        def run(x):
            own = torch.Generator().manual_seed(self.seeds[i][j])
            if is_recomputing():
                own.set_state(layer.state)
            layer.state = own.get_state()
            with drawing_from(own):
                return layer(x)

        return run


def test_a_state_that_the_next_micro_batch_overwrites_on_their_layer_is_told():
    message = n12.check_numbers(StateOnTheLayer).message
    assert "micro-batch 0 in partition 0 draws another mask in the recompute, behind all other pairs" in message
