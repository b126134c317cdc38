"""How three times are tried: right ones that are taken otherwise pass, wrong ones are told what they did."""

import itertools
import statistics

import pytest

from support.kit import outside
from support.n01 import timing
from support.n01.checks import _times, check_times


def seconds_of(batches, use, clock, most=10**6):
    """Return seconds a batch, the first left out."""
    iterator = iter(batches)
    use(next(iterator))
    begun = clock()
    count = 0
    for batch in itertools.islice(iterator, most):
        use(batch)
        count += 1
    return (clock() - begun) / count


def kept_of(loader, count):
    return [batch for batch, _ in zip(loader, range(count), strict=False)]


def nothing(batch):
    pass


def whole_loop_for_some(loader, count):
    """Keep the first batches of a loop that goes to its end: then no worker has anything left to load."""
    return [batch for number, batch in enumerate(loader) if number < count]


def fifty_batches(loader, step, clock):
    """No whole epoch, but for the batches that are kept; and no step of the three is the first of all."""
    kept = whole_loop_for_some(loader, 5)
    step(kept[0])
    return [seconds_of(each, use, clock, 50) for each, use in ((kept, step), (loader, nothing), (loader, step))]


def backwards(loader, step, clock):
    """The three in another order: the first step of all is one beside the loader."""
    both = seconds_of(loader, step, clock)
    alone = seconds_of(loader, id, clock)
    return seconds_of(whole_loop_for_some(loader, 5), step, clock), alone, both


def by_stamps(loader, step, clock):
    """A look at the clock behind each batch; the mean of all gaps but the first."""

    def stamps(batches, use):
        looks = []
        for batch in batches:
            use(batch)
            looks.append(clock())
        return statistics.fmean(b - a for a, b in itertools.pairwise(looks))

    kept = list(itertools.islice(loader, 8))
    alone = stamps(loader, nothing)
    return stamps(kept, step), alone, stamps(loader, step)


def keeps_on_the_way(loader, step, clock):
    """The batches that are kept are the first of the loop without training."""
    kept = []

    def keep(batch):
        if len(kept) < 4:
            kept.append(batch)

    alone = seconds_of(loader, keep, clock)
    return seconds_of(kept, step, clock), alone, seconds_of(loader, step, clock)


def from_the_second_batch_on(loader, step, clock):
    """The interval begins when the first batch is there, and nobody has trained on it."""
    kept = whole_loop_for_some(loader, 8)
    step(kept[0])

    def pace(batches, use):
        iterator = iter(batches)
        next(iterator)
        begun = clock()
        count = 0
        for batch in iterator:
            use(batch)
            count += 1
        return (clock() - begun) / count

    return pace(kept, step), pace(loader, nothing), pace(loader, step)


def behind_the_last_step(loader, step, clock):
    """The interval begins when the first batch is there, and ends behind the last step: one step more."""
    kept = whole_loop_for_some(loader, 8)
    step(kept[0])
    looks = []
    for batch in loader:
        looks.append(clock())
        step(batch)
    both = (clock() - looks[0]) / (len(looks) - 1)
    return seconds_of(kept, step, clock), seconds_of(loader, nothing, clock), both


def by_median(loader, step, clock):
    def pace(batches, use):
        looks = []
        for batch in batches:
            use(batch)
            looks.append(clock())
        return statistics.median([b - a for a, b in itertools.pairwise(looks)])

    kept = list(itertools.islice(loader, 8))
    return pace(kept, step), pace(loader, nothing), pace(loader, step)


def step_by(reduce):
    """The step by something else than the mean."""

    def answer(loader, step, clock):
        alone = seconds_of(loader, nothing, clock)
        took = []
        for batch in whole_loop_for_some(loader, 8):
            begun = clock()
            step(batch)
            took.append(clock() - begun)
        return reduce(took[1:]), alone, seconds_of(loader, step, clock)

    return answer


def step_by_looks_before(loader, step, clock):
    """A look at the clock before each step but the warm one: the last step is between no two looks."""
    kept = whole_loop_for_some(loader, 6)
    step(kept[0])
    looks = []
    for batch in kept:
        looks.append(clock())
        step(batch)
    alone = (looks[-1] - looks[0]) / (len(looks) - 1)
    return alone, seconds_of(loader, nothing, clock), seconds_of(loader, step, clock)


def warmed_step_by(reduce):
    """The same of four batches, behind a step that nobody times."""

    def answer(loader, step, clock):
        kept = whole_loop_for_some(loader, 4)
        step(kept[0])
        took = []
        for batch in kept:
            begun = clock()
            step(batch)
            took.append(clock() - begun)
        return reduce(took), seconds_of(loader, nothing, clock), seconds_of(loader, step, clock)

    return answer


def some_of_each(count):
    """Not the whole epoch."""

    def answer(loader, step, clock):
        kept = whole_loop_for_some(loader, 8)
        step(kept[0])
        return [seconds_of(each, use, clock, count) for each, use in ((kept, step), (loader, nothing), (loader, step))]

    return answer


def eight_and_a_loop_variable(loader, step, clock):
    """The batch that the first loop saw last is still known by its name."""
    kept = []
    for batch in loader:
        if len(kept) < 8:
            kept.append(batch)
    step(kept[0])
    return seconds_of(kept, step, clock), seconds_of(loader, nothing, clock), seconds_of(loader, step, clock)


@pytest.mark.parametrize(
    "answer",
    [
        eight_and_a_loop_variable,
        from_the_second_batch_on,
        behind_the_last_step,
        backwards,
        by_stamps,
        keeps_on_the_way,
        step_by(statistics.fmean),
        step_by_looks_before,
        _times(("    alone = ", "    step(kept[0])  # to warm up: nobody times it\n    alone = ")),
    ],
)
def test_three_times_that_are_taken_otherwise_are_right(answer):
    verdict = check_times(answer)
    assert verdict.status == "right", verdict


def test_the_ninth_kept_batch_is_one_too_many():
    def nine(loader, step, clock):
        kept = whole_loop_for_some(loader, 9)
        step(kept[0])
        return seconds_of(kept, step, clock), seconds_of(loader, nothing, clock), seconds_of(loader, step, clock)

    assert f"The step ran on 9 kept batches. {timing.HOLDS}" in check_times(nine).message


def short_beside_a_whole_loop(*short):
    """A loop takes the whole epoch, and nobody times it: of those that are timed some are short."""

    def answer(loader, step, clock):
        kept = whole_loop_for_some(loader, 5)
        for batch in loader:
            step(batch)
        most = {name: 8 if name in short else 10**6 for name in ("alone", "both")}
        alone = seconds_of(loader, nothing, clock, most["alone"])
        return seconds_of(kept, step, clock), alone, seconds_of(loader, step, clock, most["both"])

    return answer


def one_batch_repeated(loader, step, clock):
    kept = [next(iter(loader))] * 8
    return seconds_of(kept, step, clock), seconds_of(loader, nothing, clock), seconds_of(loader, step, clock)


def one_of_eight_repeated(loader, step, clock):
    kept = kept_of(loader, 8)
    alone = seconds_of(loader, nothing, clock)
    return seconds_of([kept[0] for _ in kept], step, clock), alone, seconds_of(loader, step, clock)


def eight_of_each(loader, step, clock):
    def few():
        return itertools.islice(loader, 8)

    return seconds_of(list(few()), step, clock), seconds_of(few(), nothing, clock), seconds_of(few(), step, clock)


def all_kept(loader, step, clock):
    kept = kept_of(loader, 8)
    return seconds_of(kept, step, clock), seconds_of(kept, nothing, clock), seconds_of(kept, step, clock)


def loader_kept(loader, step, clock):
    kept = kept_of(loader, 8)
    return seconds_of(kept, step, clock), seconds_of(kept, nothing, clock), seconds_of(loader, step, clock)


def listed(loader, step, clock):
    kept = kept_of(loader, 8)
    begun = clock()
    count = len(list(loader))
    alone = (clock() - begun) / count
    return seconds_of(kept, step, clock), alone, seconds_of(loader, step, clock)


def split(loader, step, clock):
    """All three from one loop."""
    loading = []
    training = []
    before = clock()
    for batch in loader:
        came = clock()
        step(batch)
        loading.append(came - before)
        before = clock()
        training.append(before - came)
    count = len(loading) - 1
    load = sum(loading[1:]) / count
    train = sum(training[1:]) / count
    return train, load, load + train


def never_kept(loader, step, clock):
    """The step in the loop over the loader."""
    training = []
    alone = seconds_of(loader, nothing, clock)
    for batch in loader:
        came = clock()
        step(batch)
        training.append(clock() - came)
    return sum(training[1:]) / (len(training) - 1), alone, seconds_of(loader, step, clock)


def step_before_the_clock(loader, step, clock):
    """The first step of all is in the mean."""
    kept = kept_of(loader, 8)
    begun = clock()
    for batch in kept:
        step(batch)
    first = (clock() - begun) / 8
    return first, seconds_of(loader, nothing, clock), seconds_of(loader, step, clock)


def all_but_one(loader, step, clock):
    def pace(batches, use):
        looks = [clock() for batch in batches if use(batch) is None]
        return (looks[-2] - looks[0]) / (len(looks) - 1)

    return pace(kept_of(loader, 8), step), pace(loader, nothing), pace(loader, step)


def shortest(loader, step, clock):
    def pace(batches, use):
        looks = [clock() for batch in batches if use(batch) is None]
        return min(b - a for a, b in itertools.pairwise(looks))

    return pace(kept_of(loader, 8), step), pace(loader, nothing), pace(loader, step)


def milliseconds(loader, step, clock):
    return [1000 * seconds for seconds in backwards(loader, step, clock)]


def a_dictionary(loader, step, clock):
    return dict(zip(("step", "loader", "both"), backwards(loader, step, clock), strict=True))


def epochs(loader, step, clock):
    kept = kept_of(loader, 8)
    return seconds_of(kept, step, clock), 20 * seconds_of(loader, nothing, clock), seconds_of(loader, step, clock)


def step_at_once(loader, step, clock):
    """The step is timed while workers that stay still fill their places."""
    kept = kept_of(loader, 8)
    return [seconds_of(each, use, clock) for each, use in ((kept, step), (loader, nothing), (loader, step))]


def step_beside_an_open_loop(loader, step, clock):
    """The loop from which the kept batches come is left open."""
    alone = seconds_of(loader, nothing, clock)
    both = seconds_of(loader, step, clock)
    left_open = iter(loader)
    kept = [next(left_open) for _ in range(5)]
    return seconds_of(kept, step, clock), alone, both


def step_last(loader, step, clock):
    """The step behind the others, and behind a loop that is left."""
    alone = seconds_of(loader, nothing, clock)
    both = seconds_of(loader, step, clock)
    return seconds_of(kept_of(loader, 5), step, clock), alone, both


def behind_two_loops_of_fifty(loader, step, clock):
    """Both loops are left after fifty batches; then the step runs."""
    kept = whole_loop_for_some(loader, 5)
    alone = seconds_of(loader, nothing, clock, 50)
    both = seconds_of(loader, step, clock, 50)
    return seconds_of(kept, step, clock), alone, both


def first_of_five_loops(loader, step, clock):
    """Without a shuffle they are one and the same batch."""
    kept = [next(iter(loader)) for _ in range(5)]
    alone = seconds_of(loader, nothing, clock)
    return seconds_of(kept, step, clock), alone, seconds_of(loader, step, clock)


def sums_for_ever(loader, step, clock, looks=[]):  # noqa: B006  that is the mistake
    """The looks at the clock in a list that is made once."""

    def pace(batches, use):
        for batch in batches:
            use(batch)
            looks.append(clock())
        return (looks[-1] - looks[0]) / (len(looks) - 1)

    kept = whole_loop_for_some(loader, 5)
    return pace(kept, step), pace(loader, nothing), pace(loader, step)


def keeps_for_ever(loader, step, clock, kept=[]):  # noqa: B006  that is the mistake
    """The kept batches in a list that is made once: later calls train on those of another loader."""
    alone = seconds_of(loader, lambda batch: len(kept) < 5 and kept.append(batch), clock)
    return seconds_of(kept, step, clock), alone, seconds_of(loader, step, clock)


def test_lists_that_outlive_a_call_are_told_so():
    for _ in range(2):
        verdict = check_times(sums_for_ever)
        assert verdict.status == "wrong"
        assert f"in `looks`. {outside.REMEMBERED}" in verdict.message


def test_batches_that_outlive_a_call_are_told_so():
    for says in (f"in `kept`. {outside.REMEMBERED}", "a step is given a batch of another loader"):
        verdict = check_times(keeps_for_ever)
        assert verdict.status == "wrong"
        assert says in verdict.message


@pytest.mark.parametrize(
    "answer, says",
    [
        (step_at_once, timing.STILL_LOADING),
        (step_beside_an_open_loop, timing.STILL_LOADING),
        (step_last, timing.STILL_LOADING),
        (behind_two_loops_of_fifty, timing.SHORT),
        (first_of_five_loops, timing.FIRST_ONLY),
        (by_median, timing.MEDIAN),
        (step_by(min), timing.STEPS_DIFFER),
        (step_by(max), timing.STEPS_DIFFER),
        (warmed_step_by(min), timing.STEPS_DIFFER),
        (warmed_step_by(statistics.median), timing.STEPS_DIFFER),
        (step_by(statistics.median), timing.STEPS_DIFFER),
        (step_by(lambda took: statistics.fmean(sorted(took)[1:-1])), timing.STEPS_DIFFER),
        (fifty_batches, f"took more than 51 batches of 60. {timing.SHORT}"),
        (some_of_each(16), timing.SHORT),
        (
            short_beside_a_whole_loop("alone"),
            f"No timed loop without training took more than 9 batches of 20. {timing.SHORT}",
        ),
        (
            short_beside_a_whole_loop("both"),
            f"No timed loop with training took more than 9 batches of 20. {timing.SHORT}",
        ),
        (some_of_each(24), timing.SHORT),
        (one_batch_repeated, timing.REPEATED),
        (one_of_eight_repeated, timing.REPEATED),
        (eight_of_each, f"took more than 8 batches of 20. {timing.SHORT}"),
        (all_kept, timing.NO_BOTH),
        (loader_kept, f"took more than 9 batches of 20. {timing.SHORT}"),
        (listed, f"28 batches are in memory at the same time. {timing.HOLDS}"),
        (split, f"loader 3, both 4; due are step 1, loader 4, both 4 seconds a batch. {timing.NEVER_KEPT}"),
        (never_kept, timing.NEVER_KEPT),
        (step_before_the_clock, "you give step 13.5, loader 4, both 4; due are step 1"),
        (all_but_one, "due are step 1, loader 4, both 4"),
        (shortest, "loader 0.8, both 0.8; due are step 0.5, loader 4, both 4"),
        (milliseconds, "you give step 1000, loader 4000, both 4000"),
        (a_dictionary, "three times are due, not {"),
        (epochs, "loader 80"),
    ],
)
def test_three_wrong_times_are_told_what_they_are_and_no_sentence_of_another(answer, says):
    verdict = check_times(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message
    others = [sentence for sentence in check_times.mistakes if sentence in verdict.message]
    assert [sentence for sentence in others if sentence not in says] == [], verdict
