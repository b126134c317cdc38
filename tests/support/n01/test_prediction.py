"""How a prediction of an epoch is judged: other right ones pass, a wrong one is told nothing that is not true of it."""

import itertools
from copy import deepcopy

import pytest

from support.kit import outside
from support.kit.mistakes import edited
from support.n01 import prediction
from support.n01.prediction import check_predict
from support.n01.solved import predict_epoch


def by_lists(loads, workers, cores, read, send, receive, step, prefetch=2):
    """The moments in lists, with a sentinel in front of each: the first batches find a 0 there."""
    alone = sum(load + read + step for load in loads)
    if not workers:
        return max(alone, (alone - len(loads) * read) / cores)
    free = [0] * workers
    ordered = [0] * (workers * prefetch)
    now = 0
    for b, load in enumerate(loads):
        free[b % workers] = max(free[b % workers], ordered[b]) + read + load + send
        ordered.append(max(now, free[b % workers]) + receive)
        now = ordered[-1] + step
    return max(now, (alone + len(loads) * (send + receive - read)) / cores)


def by_recursion(loads, workers, cores, read, send, receive, step, prefetch=2):
    """Each moment asks for those before it."""
    known = {}

    def moment(what, b):
        if b < 0:
            return 0
        if (what, b) not in known:
            if what == "loaded":
                begun = max(moment("loaded", b - workers), moment("received", b - workers * prefetch))
                known[what, b] = begun + read + loads[b] + send
            else:
                after = moment("received", b - 1) + step * (b > 0)
                known[what, b] = max(moment("loaded", b), after) + receive
        return known[what, b]

    n = len(loads)
    if workers == 0:
        return max(sum(loads, n * (read + step)), sum(loads, n * step) / cores)
    end = moment("received", n - 1) + step if n else 0
    return max(end, sum(loads, n * (send + receive + step)) / cores)


def by_queue(loads, workers, cores, read, send, receive, step, prefetch=2):
    """A trainer that hands orders to queues, and workers that are asked for their next result."""
    if not workers:
        computed = sum(loads) + step * len(loads)
        return max(computed + read * len(loads), computed / cores)
    queues = [[] for _ in range(workers)]
    clocks = [0.0] * workers
    todo = iter(enumerate(loads))
    for b, load in itertools.islice(todo, workers * prefetch):
        queues[b % workers].append((0.0, load))
    now = 0.0
    for b in range(len(loads)):
        k = b % workers
        given, load = queues[k].pop(0)
        clocks[k] = max(clocks[k], given) + read + load + send
        now = max(now, clocks[k]) + receive
        for further, its_load in itertools.islice(todo, 1):
            queues[further % workers].append((now, its_load))
        now += step
    return max(now, (sum(loads) + len(loads) * (send + receive + step)) / cores)


@pytest.mark.parametrize("answer", [by_lists, by_recursion, by_queue])
def test_a_prediction_that_is_written_otherwise_is_right(answer):
    verdict = check_predict(answer)
    assert verdict.status == "right", verdict


def changed(*changes):
    return edited(predict_epoch, *changes)


@pytest.mark.parametrize("share", ["cores <= workers", "cores < workers + 0.6", "cores < 2", "workers < 5"])
def test_whoever_lets_rule_4_hold_for_some_cores_only_is_refused(share):
    answer = edited(predict_epoch, ("busy / cores)", f"(busy / cores if {share} else 0))"))
    verdict = check_predict(answer)
    assert verdict.status == "wrong"
    assert (prediction.FEWER_THAN_ALL in verdict.message) == (share == "cores <= workers")


@pytest.mark.parametrize("computed", ["begun + read", "+ loads[b]", "+ send\n", ") + receive", "taken[b] + step"])
def test_whoever_lets_rules_1_to_3_take_longer_on_less_than_a_core_is_refused(computed):
    stretched = f"{computed.rstrip()} / min(1, cores)\n"
    answer = changed((computed, stretched if computed.endswith("\n") else stretched.rstrip()))
    assert check_predict(answer).status == "wrong"


@pytest.mark.parametrize("before", ["b - workers", "b - workers * prefetch"])
def test_whoever_counts_from_the_end_of_an_epoch_that_is_short_is_refused(before):
    assert check_predict(changed((f"get({before}, 0)", f"get(({before}) % batches, 0)"))).status == "wrong"


ALONE = "sum(loads) + batches * (read + step)"
ALONE_BUSY = "(sum(loads) + batches * step)"
RECEIVED = "taken.get(b - workers * prefetch, 0)"
BUSY = "sum(loads) + batches * (send + receive + step)"
SEND_BY_THE_TRAINER = changed(("+ loads[b] + send", "+ loads[b]"), (") + receive", ") + send + receive"))
FREE_BEFORE_THE_SEND = changed(
    ("loaded.get(b - workers, 0)", "loaded.get(b - workers, send) - send"),
)
ORDERED_BEFORE = "the order goes out when a batch is received; yours goes out before."
NO_RECEIVE = "The trainer also has to receive a batch before its step."


@pytest.mark.parametrize(
    "answer, says",
    [
        (SEND_BY_THE_TRAINER, prediction.SENT_BY_TRAINER),
        (FREE_BEFORE_THE_SEND, prediction.FREE_TOO_SOON),
        (changed((BUSY, "sum(loads) + batches * (send + receive)")), prediction.NO_STEP),
        (changed((BUSY, "sum(loads) + batches * (send + step)")), prediction.NO_RECEIVE_COMPUTED),
        (
            changed((RECEIVED, "taken[b - workers * prefetch] if b > workers * prefetch else 0")),
            prediction.ONE_UNBOUND,
        ),
        (
            changed((ALONE_BUSY, f"({BUSY})")),
            prediction.SENT_TO_NOBODY,
        ),
        (changed((f"max(alone, {ALONE_BUSY} / cores)", "alone")), prediction.ALONE_ON_LESS),
        (changed((RECEIVED, "done.get(b - workers * prefetch - 1, 0)")), ORDERED_BEFORE),
        (
            changed(
                (
                    f"max(alone, {ALONE_BUSY} / cores)",
                    "sum(max(read + load + step, (load + step) / cores) for load in loads)",
                )
            ),
            prediction.BY_BATCH,
        ),
    ],
)
def test_a_wrong_prediction_is_told_its_own_sentence(answer, says):
    verdict = check_predict(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert (NO_RECEIVE in verdict.message) == (says == NO_RECEIVE)


def steady(load_of):
    """A formula for the pace, from one number for all loads."""

    def formula(loads, workers, cores, read, send, receive, step, prefetch=2):
        n = len(loads)
        if not n:
            return 0
        if not workers:
            return sum(loads) + n * (read + step)
        load = load_of(loads)
        pace = max((read + load + send) / workers, receive + step)
        first = read + load + send + receive + step
        return max(first + (n - 1) * pace, (sum(loads) + n * (send + receive + step)) / cores)

    return formula


def test_a_simulation_that_is_steady_is_not_called_a_formula():
    """A worker that waits until its batch is received, and loads that are sorted."""
    waits = changed(("max(loaded.get(b - workers, 0), ", "max(taken.get(b - workers, 0), "))
    for answer in (waits, changed(("    loaded = dict", "    loads = sorted(loads)\n    loaded = dict"))):
        verdict = check_predict(answer)
        assert verdict.status == "wrong"
        assert "formula" not in verdict.message


@pytest.mark.parametrize("load_of", [max, lambda loads: sum(loads) / len(loads), lambda loads: loads[0]])
def test_a_formula_for_the_steady_state_is_told_what_it_cannot_know(load_of):
    """The first load may count in it, but not which of the others is the slow one."""
    verdict = check_predict(steady(load_of))
    assert verdict.status == "wrong"
    assert prediction.STEADY in verdict.message
    assert "a slow batch that isn't the first" in verdict.message


@pytest.mark.parametrize(
    "answer",
    [
        changed(("workers * prefetch", "(workers + 1) * prefetch")),
        changed(("read + loads[b] + send", "int(read + loads[b] + send)")),
        changed(
            ("alone = sum(loads) + batches * (read + step)", "alone = batches * (sum(loads) / batches + read + step)")
        ),
        changed(("batches * (read + step)", "batches * read")),
        changed(("busy / cores", "busy / cores + read")),
        changed(("busy / cores", "busy / min(cores, workers)")),
        changed(("busy = ", "busy = read + ")),
        changed(
            (
                "taken[b] + step",
                "max(taken[b] + step, (sum(loads[: b + 1]) + (b + 1) * (send + receive + step)) / cores)",
            )
        ),
        lambda prefetch, **named: predict_epoch(prefetch=min(prefetch, 3), **named),
        lambda workers, **named: predict_epoch(workers=min(workers, 6), **named),
        lambda loads, **named: predict_epoch(loads=loads[:200], **named),
        changed(("read + loads[b]", "max(read, loads[b])")),
        changed(("done[b] = taken[b] + step", "done[b] = taken[b] + step + send")),
        changed(("+ receive\n", "+ receive * (b > 0)\n")),
        changed(("return max(done", "return round(max(done"), ("busy / cores)", "busy / cores))")),
        changed(("range(batches)", "range(1, batches)"), ("done = {-1: 0.0}", "done = {0: 0.0}")),
        lambda loads, *others, **named: predict_epoch(loads[:1] * len(loads), *others, **named),
    ],
)
def test_a_wrong_prediction_that_nobody_knows_gets_a_case_and_no_sentence_of_another(answer):
    verdict = check_predict(answer)
    assert verdict.status == "wrong"
    assert "loads = [" in verdict.message
    assert not [sentence for sentence in check_predict.mistakes if sentence in verdict.message], verdict


@pytest.mark.parametrize("few", ["batches <= workers", "batches == 1"])
def test_rule_4_holds_for_an_epoch_of_few_batches_too(few):
    answer = edited(predict_epoch, ("busy / cores)", f"0 if {few} else busy / cores)"))
    assert check_predict(answer).status == "wrong"


def test_a_prediction_that_changes_its_loads_is_told_so_and_spoils_no_case():
    before = deepcopy(check_predict.all_cases())

    def consuming(loads, **named):
        end = predict_epoch(loads, **named)
        while loads:
            loads.pop()
        return end

    verdict = check_predict(consuming)
    assert verdict.status == "wrong"
    assert "12, prefetch = 2, your function has changed its argument loads, which is [] afterwards" in verdict.message
    assert check_predict.all_cases() == before


def with_lists(where):
    """Moments in lists that are made `where`: in the function, or once for all calls of it."""
    in_the_function = """
def predict_epoch(loads, workers, cores, read, send, receive, step, prefetch=2):
    loaded, taken = [], []
"""
    once = """
loaded, taken = [], []
def predict_epoch(loads, workers, cores, read, send, receive, step, prefetch=2):
"""
    a_default = """
def predict_epoch(loads, workers, cores, read, send, receive, step, prefetch=2, loaded=[], taken=[]):
"""
    an_attribute = """
class State:
    loaded, taken = [], []
def predict_epoch(loads, workers, cores, read, send, receive, step, prefetch=2):
    loaded, taken = State.loaded, State.taken
"""
    rest = """
    if workers == 0:
        return max(sum(loads) + len(loads) * (read + step), (sum(loads) + len(loads) * step) / cores)
    done = 0
    for b in range(len(loads)):
        free = loaded[b - workers] if b >= workers else 0
        ordered = taken[b - workers * prefetch] if b >= workers * prefetch else 0
        loaded.append(max(free, ordered) + read + loads[b] + send)
        taken.append(max(loaded[-1], done) + receive)
        done = taken[-1] + step
    return max(done, (sum(loads) + len(loads) * (send + receive + step)) / cores)
"""
    space = {"__name__": "__main__"}
    heads = dict(inside=in_the_function, once=once, default=a_default, attribute=an_attribute)
    exec(heads[where] + rest, space)
    return space["predict_epoch"]


def test_moments_in_lists_are_right_where_each_call_makes_its_own():
    assert check_predict(with_lists("inside")).status == "right"


@pytest.mark.parametrize("where, names", [("once", "`loaded`"), ("default", "`loaded`"), ("attribute", "`loaded`")])
def test_lists_that_outlive_a_call_are_told_so_and_nothing_of_a_formula(where, names):
    answer = with_lists(where)
    for _ in range(2):  # the check is called twice: by `use`, and for its sentence
        verdict = check_predict(answer)
        assert verdict.status == "wrong"
        assert names in verdict.message
        assert outside.REMEMBERED in verdict.message
        assert prediction.STEADY not in verdict.message
        assert not [sentence for sentence in check_predict.mistakes if sentence in verdict.message], verdict


def test_moments_that_each_call_writes_over_are_left_behind_too():
    """The numbers are right: each call asks only for what it has written itself."""
    answer = edited(
        predict_epoch,
        ("    loaded = dict[int, float]()\n", ""),
        ("    taken = dict[int, float]()\n", ""),
        names={"loaded": {}, "taken": {}},
    )
    verdict = check_predict(answer)
    assert verdict.status == "wrong"
    assert outside.REMEMBERED in verdict.message


@pytest.mark.parametrize("default", [": int = 1", ""])
def test_whoever_has_another_number_of_places_where_nobody_says_it_is_refused(default):
    verdict = check_predict(changed((": int = 2", default)))
    assert verdict.status == "wrong"
    assert "step = 12" in verdict.message and "prefetch =" not in verdict.message


def test_two_faults_at_once_are_not_told_as_one_that_is_not_there():
    verdict = check_predict(changed(("(read + step)", "(read + send + step)"), ("+ loads[b] + send", "+ loads[b]")))
    assert "workers = 0" in verdict.message
    assert "in the worker's time that is missing" not in verdict.message


def test_a_time_that_was_rounded_is_told_with_all_its_digits():
    def rounded(loads, workers, cores, read, send, receive, step, prefetch=2):
        return round(predict_epoch(loads, workers, cores, read, send, receive, step, prefetch), 2)

    assert "expected 510.6666666666667, got 510.67" in check_predict(rounded).message


def test_a_whole_quotient_is_found_without_workers_too():
    def whole(loads, workers, cores, read, send, receive, step, prefetch=2):
        if workers:
            return predict_epoch(loads, workers, cores, read, send, receive, step, prefetch)
        computed = sum(loads) + len(loads) * step
        return max(computed + len(loads) * read, computed // cores)

    assert "expected 127.5, got 127" in check_predict(whole).message
