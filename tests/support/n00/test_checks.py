"""An engine and an idle share of any kind are right; wrong ones, and wrong guesses, are told what is true of them."""

import math
from collections import defaultdict

import pytest

from support.n00.checks import (
    check_idle_share,
    check_makespan,
    check_play,
    guess_days,
    guess_longer_mean,
    guess_python_speedup,
    guess_slow_rank,
    guess_weight,
    guess_weights,
)
from support.n00.solved import my_idle_share

# ---- exercise 3: when tasks run


def by_rounds(tasks):
    """Start everything at 0, and push back what stands too early until nothing does."""
    starts = {name: 0 for name, *_ in tasks}
    seconds = {name: length for name, _, length, _ in tasks}
    moved = True
    while moved:
        moved = False
        last = {}
        for name, lane, _, needs in tasks:
            before = [*needs, *last.get(lane, [])]
            earliest = max((starts[other] + seconds[other] for other in before), default=0)
            moved = moved or starts[name] != earliest
            starts[name] = earliest
            last[lane] = [name]
    return {name: [starts[name], starts[name] + seconds[name]] for name in starts}


def by_recursion(tasks):
    before = {}
    latest = {}
    for name, lane, seconds, needs in tasks:
        before[name] = (seconds, [*needs, *([latest[lane]] if lane in latest else [])])
        latest[lane] = name

    def end(name):
        seconds, needs = before[name]
        return seconds + max(map(end, needs), default=0)

    return {name: (end(name) - seconds, end(name)) for name, (seconds, _) in before.items()}


def rounding(how, start=False):
    """Make an engine that rounds the seconds of each task, or each start."""

    def play(tasks):
        times = {}
        free = {}
        for name, lane, seconds, needs in tasks:
            begun = max([free.get(lane, 0), *(times[other][1] for other in needs)])
            begun = how(begun) if start else begun
            times[name] = begun, begun + (seconds if start else how(seconds))
            free[lane] = times[name][1]
        return times

    return play


@pytest.mark.parametrize("answer", [rounding(int), rounding(round), rounding(math.ceil, start=True)])
def test_an_engine_that_rounds_seconds_is_refused(answer):
    assert check_play(answer).status == "wrong"


def needs_found_in_their_text(tasks):
    times = {}
    free = {}
    for name, lane, seconds, needs in tasks:
        start = max([free.get(lane, 0), *(times[other][1] for other in times if other in str(needs))])
        times[name] = (start, start + seconds)
        free[lane] = start + seconds
    return times


def ends_of_lanes_among_those_of_tasks(tasks):
    ends = {}
    times = {}
    for name, lane, seconds, needs in tasks:
        start = max([ends.get(lane, 0), *(ends[other] for other in needs)])
        times[name] = (start, start + seconds)
        ends[name] = ends[lane] = start + seconds
    return times


@pytest.mark.parametrize("answer", [needs_found_in_their_text, ends_of_lanes_among_those_of_tasks])
def test_a_name_that_is_a_part_of_another_or_that_of_a_lane_is_another_task(answer):
    assert check_play(answer).status == "wrong"


def test_waiting_for_a_lane_is_not_called_waiting_for_the_list():
    def play(tasks):
        times = {}
        free = {}
        lane_of = {name: lane for name, lane, *_ in tasks}
        for name, lane, seconds, needs in tasks:
            start = max([free.get(lane, 0), *(free[lane_of[other]] for other in needs)])
            times[name] = start, start + seconds
            free[lane] = start + seconds
        return times

    assert "You waited for the lane of what a task needs" in check_play(play).message


def test_a_lane_of_which_only_the_durations_count_is_told_of_its_waits():
    def play(tasks):
        times = {}
        for number, (name, lane, seconds, needs) in enumerate(tasks):
            before = sum(task[2] for task in tasks[:number] if task[1] == lane)
            start = max([before, *(times[other][1] for other in needs)])
            times[name] = start, start + seconds
        return times

    assert "You left out the time that a lane has waited" in check_play(play).message


def with_free(free, tasks):
    times = {}
    for name, lane, seconds, needs in tasks:
        start = max([free[lane], *(times[other][1] for other in needs)])
        times[name] = (start, start + seconds)
        free[lane] = start + seconds
    return times


def three_lanes(tasks):
    return with_free({"a": 0, "b": 0, "c": 0}, tasks)


def first_task_first(tasks):
    tasks[0]
    return with_free(defaultdict(int), tasks)


def waiting_for_four(tasks):
    return by_rounds([(name, lane, seconds, needs[:4]) for name, lane, seconds, needs in tasks])


def using_up_tasks(tasks):
    left = tasks
    done = {}
    free = {}
    while left:
        name, lane, seconds, needs = left.pop(0)
        start = max([free.get(lane, 0), *(done[other][1] for other in needs)])
        done[name] = (start, start + seconds)
        free[lane] = start + seconds
    return done


def using_up_needs(tasks):
    times = {}
    free = {}
    for name, lane, seconds, needs in tasks:
        start = free.get(lane, 0)
        while needs:
            start = max(start, times[needs.pop()][1])
        times[name] = (start, start + seconds)
        free[lane] = start + seconds
    return times


def lanes_by_a_letter(place):
    return lambda tasks: by_rounds([(name, lane[place], seconds, needs) for name, lane, seconds, needs in tasks])


def with_a_task_more(tasks):
    return by_rounds(tasks) | {"end": (0, 0)}


@pytest.mark.parametrize(
    "answer, told",
    [
        (three_lanes, "your code raised KeyError: 'gpu 0'"),
        (first_task_first, "for tasks = [] your code raised IndexError"),
        (waiting_for_four, "w in lane c runs from 10 to 11, not from 3 to 4"),
        (using_up_tasks, "your function has changed its argument tasks, which is [] afterwards"),
        (using_up_needs, "your function has changed its argument tasks"),
        (lanes_by_a_letter(0), "y in lane gpu 10 runs from 0 to 3, not from 2 to 5"),
        (lanes_by_a_letter(-1), "y in lane gpu 10 runs from 0 to 3, not from 2 to 5"),
        (with_a_task_more, "'end' is no task"),
    ],
)
def test_an_engine_of_the_shown_lanes_or_of_used_up_tasks_is_told_so(answer, told):
    verdict = check_play(answer)
    assert verdict.status == "wrong"
    assert told in verdict.message
    assert check_play(by_rounds), "it is judged as in a fresh process"


@pytest.mark.parametrize("answer", [by_rounds, by_recursion])
def test_an_engine_may_be_written_in_any_way(answer):
    assert check_play(answer), check_play(answer)


@pytest.mark.parametrize(
    "answer, told",
    [
        (lambda tasks: [], "a dictionary from name to (start, end) expected, not list"),
        (lambda tasks: {}, "x is missing"),
        (lambda tasks: {name: 0 for name, *_ in tasks}, "x has 0, and not its start and its end"),
    ],
)
def test_another_form_is_told_as_such(answer, told):
    assert told in check_play(answer).message


# ---- exercise 2: the idle share


def from_first_to_last(first, last):
    """Make the idle share of the makespan between two spans."""

    def share(spans, lanes):
        worked = sum(end - start for _, start, end in spans)
        return 1 - worked / len(lanes) / (last(spans)[2] - first(spans)[1])

    return share


def earliest(spans):
    return min(spans, key=lambda span: span[1])


def latest(spans):
    return max(spans, key=lambda span: span[2])


def using_up_spans(spans, lanes):
    worked = 0
    starts = []
    ends = []
    while spans:
        _, start, end = spans.pop()
        worked += end - start
        starts.append(start)
        ends.append(end)
    return 1 - worked / len(lanes) / (max(ends) - min(starts))


@pytest.mark.parametrize(
    "answer, told",
    [
        (from_first_to_last(lambda spans: min(spans, key=lambda span: span[2]), latest), "the span that ends first"),
        (from_first_to_last(earliest, lambda spans: max(spans, key=lambda span: span[1])), "that starts last"),
        (from_first_to_last(earliest, max), "as `max(spans)` does"),
        (from_first_to_last(min, latest), "as `min(spans)` does"),
        (from_first_to_last(min, max), "as `min(spans)` and `max(spans)` do"),
        (using_up_spans, "your function has changed its argument spans, which is [] afterwards"),
    ],
)
def test_a_makespan_of_the_wrong_spans_is_told_which_they_are(answer, told):
    verdict = check_idle_share(answer)
    assert verdict.status == "wrong"
    assert told in verdict.message
    assert sum(sentence in verdict.message for sentence in check_idle_share.mistakes) == ("changed" not in told)
    assert check_idle_share(from_first_to_last(earliest, latest)), "it is judged as in a fresh process"


def by_gaps(spans, lanes, order=sorted):
    first = min(start for _, start, _ in spans)
    last = max(end for _, _, end in spans)
    idle = 0
    for lane in lanes:
        until = first
        for _, start, end in order(span for span in spans if span[0] == lane):
            idle += max(0, start - until)
            until = end
        idle += last - until
    return idle / len(lanes) / (last - first)


def beginning_at_most_at_a_hundred(spans, lanes):
    first = min(100, *(start for _, start, _ in spans))
    worked = sum(end - start for _, start, end in spans)
    return 1 - worked / len(lanes) / (max(end for _, _, end in spans) - first)


def test_gaps_are_right_only_between_the_sorted_spans_of_a_lane_and_a_timeline_may_begin_late():
    assert check_idle_share(by_gaps), check_idle_share(by_gaps)
    assert check_idle_share(lambda spans, lanes: by_gaps(spans, lanes, order=list)).status == "wrong"
    assert check_idle_share(beginning_at_most_at_a_hundred).status == "wrong"


def by_whole_ticks(spans, lanes):
    """Count the ticks in which each lane works, as if every span began and ended with one."""
    ticks = range(int(min(start for _, start, _ in spans)), int(max(end for _, _, end in spans)))
    worked = sum(start <= tick < end for _, start, end in spans for tick in ticks)
    return 1 - worked / (len(ticks) * len(lanes))


def test_an_idle_share_of_whole_ticks_alone_is_refused():
    verdict = check_idle_share(by_whole_ticks)
    assert verdict.status == "wrong"
    assert not any(sentence in verdict.message for sentence in check_idle_share.mistakes)


def searching_from_a_thousand(spans, lanes):
    first = 1000
    for _, start, _ in spans:
        first = min(first, start)
    worked = sum(end - start for _, start, end in spans)
    return 1 - worked / len(lanes) / (max(end for _, _, end in spans) - first)


def searching_up_from_zero(spans, lanes):
    last = 0
    for _, _, end in spans:
        last = max(last, end)
    worked = sum(end - start for _, start, end in spans)
    return 1 - worked / len(lanes) / (last - min(start for _, start, _ in spans))


def by_parts_of_names(spans, lanes):
    makespan = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
    worked = [sum(end - start for name, start, end in spans if lane in name) for lane in lanes]
    return 1 - sum(worked) / len(lanes) / makespan


def copying_lanes(spans, lanes):
    return my_idle_share(spans, lanes.copy())


def of_a_second_at_least(spans, lanes):
    """Guard a division by 0 so that every makespan below 1 becomes 1, as that of a step in seconds is."""
    makespan = max(1, max(end for _, _, end in spans) - min(start for _, start, _ in spans))
    return 1 - sum(end - start for _, start, end in spans) / len(lanes) / makespan


@pytest.mark.parametrize(
    "answer",
    [searching_from_a_thousand, searching_up_from_zero, by_parts_of_names, copying_lanes, of_a_second_at_least],
)
def test_times_of_any_size_and_sign_names_that_are_parts_of_others_and_a_tuple_of_lanes_are_tried(answer):
    verdict = check_idle_share(answer)
    assert verdict.status == "wrong"
    assert not any(sentence in verdict.message for sentence in check_idle_share.mistakes)


def test_a_text_is_not_told_two_numbers_that_are_equal():
    assert "a number expected, not str" in check_idle_share(lambda *given: str(my_idle_share(*given))).message


# ---- predictions


def test_a_box_speaks_of_what_was_asked():
    assert "the factor of rank 0's gradient" in guess_weight(0.5, rows=(6, 2)).message
    assert "when both means train the same model" in guess_weights("A").message


@pytest.mark.parametrize(
    "comment, wrong, told",
    [
        *((guess_weight, weight, {"rows": (6, 2)}) for weight in (0.25, 0.5, 1, 3, 6)),
        *((guess_slow_rank, ticks, {"ranks": 4, "slow": 2}) for ticks in (5, 5.75, 6, 6.5, 7)),
        (guess_slow_rank, "10 ticks", {"ranks": 4, "slow": 2}),
        (guess_python_speedup, 2.0, {}),
        *((guess_weights, choice, {}) for choice in "ACD"),
        (guess_longer_mean, 1, {}),
        *((guess_days, number, {"devices": 8, "message": 0.1}) for number in (3.75, 4, 4.125, 4.1, 33)),
    ],
)
def test_a_famous_wrong_guess_is_not_called_close_and_its_reason_is_told(comment, wrong, told):
    message = comment(wrong, **told).message
    assert "close" not in message.replace("close to a month", ""), "told, and not cut off"
    assert "(" in message, "told, and not cut off"
    assert "…" not in message, "told, and not cut off"


def test_arguments_are_named_as_the_reader_likes_and_a_guess_may_be_a_fraction():
    hasty = check_makespan(lambda spans: sum(end - start for start, end in spans))
    assert "You added the durations up" in hasty.message
    assert check_idle_share(lambda rows, names: check_idle_share.reference(rows, names))
    assert "that is it" in guess_weight("3/4", rows=(6, 2)).message


@pytest.mark.parametrize("said", [0, "0", "rank 0", "Rank 0's"])
def test_a_rank_may_be_named_as_the_question_names_it(said):
    assert "that is it" in guess_longer_mean(said).message
    assert "that is it" not in guess_longer_mean("rank 1").message
    assert "it is slow at computing" in guess_longer_mean("rank 1").message


def a_list_of_work_whose_head_stays(tasks):
    work = list(tasks)
    times = {}
    while work:
        name, _, seconds, needs = work[0]
        if all(other in times for other in needs):
            times[name] = (0, seconds)
    return times


def an_idle_share_by_a_clock_that_stands(spans, lanes):
    now = min(start for _, start, _ in spans)
    idle = 0
    while now < max(end for _, _, end in spans):
        idle += sum(not start <= now < end for _, start, end in spans)
    return idle


def test_a_loop_that_never_ends_is_refused_and_not_waited_for():
    for check, answer in (
        (check_play, a_list_of_work_whose_head_stays),
        (check_idle_share, an_idle_share_by_a_clock_that_stands),
    ):
        verdict = check(answer)
        assert verdict.status == "wrong"
        assert "lines and has not ended (in " in verdict.message
