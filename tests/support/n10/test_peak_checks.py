"""Right and wrong peaks in bytes, exercise 2 of notebook 10, and its predictions."""

from itertools import accumulate, combinations, pairwise

import pytest

from support.n10 import checks as n10


def by_moments(sizes, starts):
    """Walk backward through the model and note what is held after each recompute."""
    held = [sizes[k] for k in starts]
    most = 0
    end = len(sizes) - 1
    for start in reversed(starts):
        most = max(most, sum(held) + sum(sizes[k] for k in range(start + 1, end + 1)))
        held.pop()
        end = start
    return most


def test_a_peak_by_walking_backward_passes_and_a_cut_of_the_text_is_as_it_says():
    assert n10.check_peak_bytes(by_moments)
    assert n10.peak_bytes([9, 9, 1, 1, 1, 1, 1], [0, 2]) == 19
    assert n10.peak_bytes([1] * 17, [0, 4, 8, 12]) == 8


def test_whoever_looks_at_the_last_segment_alone_is_refused():
    last_alone = n10.check_peak_bytes.mistakes[
        "The peak is the largest sum over all segments, not that of the last one."
    ]
    assert n10.check_peak_bytes(last_alone).status == "wrong"


def with_the_waiting_gradient(sizes, starts):
    ends = [*starts[1:], len(sizes) - 1]
    pairs = enumerate(zip(starts, ends, strict=True))
    return max(sum(sizes[k] for k in starts[: j + 1]) + sum(sizes[a + 1 : b + 1]) + sizes[b] for j, (a, b) in pairs)


def with_the_input_twice(sizes, starts):
    ends = [*starts[1:], len(sizes) - 1]
    pairs = enumerate(zip(starts, ends, strict=True))
    return max(sum(sizes[k] for k in starts[: j + 1]) + sum(sizes[a : b + 1]) for j, (a, b) in pairs)


def with_all_inputs_once(sizes, starts):
    ends = [*starts[1:], len(sizes) - 1]
    return max(sum(sizes[k] for k in {*starts, *range(a, b + 1)}) for a, b in zip(starts, ends, strict=True))


def with_the_last_input_once(sizes, starts):
    pairs = enumerate(zip(starts, [*starts[1:], len(sizes) - 1], strict=True))
    return max(sum(sizes[k] for k in {*starts[: j + 1], starts[-1], *range(a, b + 1)}) for j, (a, b) in pairs)


def with_two_inputs_behind_once(sizes, starts):
    pairs = enumerate(zip(starts, [*starts[1:], len(sizes) - 1], strict=True))
    return max(sum(sizes[k] for k in {*starts[: j + 3], *range(a, b + 1)}) for j, (a, b) in pairs)


@pytest.mark.parametrize("begin", [0, 1])  # with its input, without
def test_a_segment_that_is_neither_the_fattest_nor_one_of_the_last_two_can_need_most(begin):
    def of_three(sizes, starts):
        ends = [*starts[1:], len(sizes) - 1]
        segments = enumerate(zip(starts, ends, strict=True))
        needs = [sum(sizes[k] for k in [*starts[:j], *range(a, b + 1)]) for j, (a, b) in segments]
        fattest = max(range(len(starts)), key=lambda j: sum(sizes[starts[j] + begin : ends[j] + 1]))
        return max(needs[fattest], *needs[-2:])

    assert of_three([1] * 17, [0, 4, 8, 12]) == 8
    assert n10.check_peak_bytes(of_three).status == "wrong"


@pytest.mark.parametrize("answer", [with_all_inputs_once, with_the_last_input_once, with_two_inputs_behind_once])
def test_inputs_that_have_gone_are_refused_although_none_is_counted_twice(answer):
    assert answer([9, 9, 1, 1, 5, 1, 1], [0, 2, 4]) > n10.peak_bytes([9, 9, 1, 1, 5, 1, 1], [0, 2, 4])
    assert n10.check_peak_bytes(answer).status == "wrong"


def test_all_inputs_once_are_told_that_those_behind_are_gone():
    said = n10.check_peak_bytes(with_all_inputs_once).message
    assert "their inputs are gone" in said


@pytest.mark.parametrize(
    "answer, says",
    [
        (with_the_waiting_gradient, "The gradient that waits at a segment's end is on its way"),
        (with_the_input_twice, "A segment's input is counted twice"),
    ],
)
def test_what_is_counted_too_much_is_told_apart_by_cases_in_which_it_differs(answer, says):
    verdict = n10.check_peak_bytes(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


def by_the_callers_list(sizes, starts):
    starts.append(len(sizes) - 1)
    pairs = enumerate(pairwise(starts))
    return max(sum(sizes[k] for k in starts[: j + 1]) + sum(sizes[a + 1 : b + 1]) for j, (a, b) in pairs)


def test_whoever_appends_to_the_callers_list_is_refused():
    assert by_the_callers_list([1] * 17, [0, 4, 8, 12]) == 8
    assert "changed its argument starts" in n10.check_peak_bytes(by_the_callers_list).message


def test_falling_lengths_are_the_best_cut_and_twelve_serve_64_layers():
    starts = [0, *accumulate([11, 10, 9, 8, 7, 6, 5, 4, 3])]
    assert n10.peak_bytes([1] * 65, starts) == 12
    for layers in range(1, 11):
        inner = range(1, layers)
        cuts = (cut for many in range(layers) for cut in combinations(inner, many))
        best = min(n10.peak_bytes([1] * (layers + 1), [0, *cut]) for cut in cuts)
        assert best * (best - 1) // 2 >= layers > (best - 1) * (best - 2) // 2


# ---- predictions


def test_a_famous_wrong_guess_is_neither_right_nor_close():
    for guess, wrong in (
        (n10.guess_flops, 1.25),
        (n10.guess_momentum, 0.2),
        (n10.guess_least, 8),
        (n10.guess_least, 12),
        (n10.guess_one_block, 21),
        (n10.guess_one_block, 34),
    ):
        said = guess(wrong).message
        assert "that is it" not in said
        assert "close" not in said
        assert "(" in said
    assert "a segment with its input" in n10.guess_least(9).message  # its inside is 8
    assert "that is it" in n10.guess_flops("1.33").message
    assert "that is it" in n10.guess_one_block("32 u").message
