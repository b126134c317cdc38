"""What is particular about the checks of notebook 14; what all exercises have in common is in test_detectors."""

import itertools
import random
import re
from math import ceil

import pytest
import torch

from lib import schedules
from lib.schedules import gpipe, live_activations, simulate, waits_for, zbv, zero_bubble_h1
from lib.show.schedule_table import held
from support.kit.mistakes import edited
from support.n14 import checks as n14
from support.n14 import solved
from support.n14.warm_up import with_warm_up
from tests.lib.refusal import refuses
from tests.support.n14 import answers, split_answers

SIZES = list(itertools.product((1, 2, 5, 8, 20), range(1, 6)))


# ---- right answers that are not ours


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("check_beat", answers.by_hand),
        ("check_beat", answers.tick_by_tick),
        ("check_beat", solved.fill_holes),
        ("check_fill", answers.tick_by_tick),
        ("check_fill", answers.as_tuples),
        ("check_fill", answers.whole_on_rank_0),
        ("check_fill", answers.newest_first),
        ("check_fill", answers.by_place),
        ("check_forwards_ahead", answers.neighbour_by_neighbour),
        ("check_forwards_ahead", answers.by_waiting),
        ("check_interleaved", answers.one_round),
        ("check_interleaved", answers.by_positions),
        ("check_split", split_answers.Detached),
        ("check_split", split_answers.InPlace),
        ("check_split", split_answers.ReadsCtx),
        pytest.param("check_search", answers.two_stages, marks=pytest.mark.prove),
        ("check_search", answers.known_by_heart),
    ],
)
def test_other_right_answers_pass(name, answer):
    verdict = getattr(n14, name)(answer)
    assert verdict, verdict


# ---- wrong answers that no detector knows get their first counterexample in the exercise's own terms


def _rounded_up_by_hand(j, n, forward, backward, message):
    """Wrong where less than a thousandth of a round is over."""
    return 1 + (n - 1 - j) * (1 + int(2 * message / (forward + backward) + 0.999))


def _swapped(m, n):
    rows = solved.fill_holes(m, n)
    return [[(op, j, m - 1 - i) for op, j, i in row] if j else row for j, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("check_beat", lambda m, n: solved.table("", solved.fill_holes(m, n)), "return the lists of tasks"),
        ("check_beat", lambda m, n: solved.fill_holes(m, n)[:2], "2 orders for 4 ranks"),
        ("check_beat", lambda m, n: [[("X", 0, 0)]] * 4, "here it is one of F, B, I, W"),
        ("check_beat", lambda m, n: [["0F0"]] * 4, "is no task: write one as"),
        ("check_beat", lambda m, n: [[(None, 0, 0)]] * 4, "has the op None; here it is one of F, B, I, W"),
        ("check_beat", lambda m, n: [[(["F"], 0, 0)]] * 4, "has the op ['F']; here it is one of F, B, I, W"),
        ("check_beat", lambda m, n: [[("F", 0, -1)]] * 4, "is no task: micro_batch"),
        ("check_beat", lambda m, n: solved.fill_holes(m - 1, n), "these are done nowhere: 0F7"),
        ("check_beat", lambda m, n: solved.fill_holes(m + 1, n), "rank 0, slot"),
        ("check_beat", lambda m, n: (row for row in solved.fill_holes(m, n)), "a list with a list of tasks"),
        ("check_beat", lambda m, n: solved.fill_holes(m, n)[::-1], "rank 0 does 3F0"),
        ("check_fill", solved.beat_1f1b, "takes 16 ticks, 14 are asked for"),
        ("check_fill", _swapped, "for m = 4, n = 3: rank "),
        ("check_fill", lambda m, n: solved.fill_holes(8, 4), "for m = 4, n = 3: there are 4 orders for 3 ranks"),
        ("check_interleaved", lambda m, n, v: solved.interleaved(m, n, 1), "which stands nowhere in the table"),
        ("check_interleaved", lambda m, n, v: [["4F0"]] * n, "write one as"),
        ("check_search", lambda m, n, message, room: zbv(m, n), "return the lists of tasks"),
        (
            "check_search",
            lambda m, n, message, room: [zbv(m, n).actions(rank) for rank in range(n)],
            "takes 32.5 ticks, which is what it has to beat",
        ),
        ("check_forwards_ahead", lambda **case: 100, "100: that is more than it needs"),
        ("check_forwards_ahead", answers.one_more_than_floor, "need no further one: round up, don't add one"),
        ("check_forwards_ahead", answers.mean_of_tasks, "not each against one task"),
        ("check_forwards_ahead", answers.by_the_longer_task, "not the longer of the two"),
        ("check_forwards_ahead", answers.eager_beyond_four_ranks, "with so few it waits"),
        ("check_forwards_ahead", answers.round_in_whole_ticks, "forward = 1, backward = 0.25"),
        ("check_forwards_ahead", _rounded_up_by_hand, "message = 0.001, expected 3, got 2"),
        ("check_interleaved", answers.in_turn_up_to_four_ranks, "n = 5"),
        ("check_split", split_answers.ZerosForWeight, "after I `weight.grad` has changed"),
        ("check_split", split_answers.AppendsInForward, "after F there is something in `later` already"),
        ("check_split", split_answers.InSinglePrecision, "in float64"),
        ("check_split", split_answers.MadeContiguous, "beside x and a gradient that is expanded"),
        ("check_split", split_answers.IntoItsOwnList, "after I there are 0 functions in `later`"),
        ("check_split", split_answers.KeepsTheOthers, "x of a micro-batch whose W is done is still alive"),
        ("check_forwards_ahead", lambda **case: "1", "1 is a str, and a list is cut at an int"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name, answer, said):
    exercise = getattr(n14, name)
    verdict = exercise(answer)
    assert verdict.status == "wrong"
    assert said in verdict.message


@pytest.mark.parametrize("wrong", answers.WRONG_FILLS, ids=lambda wrong: wrong.__name__)
def test_what_fills_holes_in_some_sizes_only_is_refused(wrong):
    assert n14.check_fill(wrong).status == "wrong"


@pytest.mark.costly
@pytest.mark.parametrize("wrong", answers.WRONG_SEARCHES, ids=lambda wrong: wrong.__name__)
def test_what_wins_a_contest_by_breaking_its_rules_is_refused(wrong):
    assert n14.check_search(wrong).status == "wrong"


@pytest.mark.parametrize("keeper", split_answers.KEEPERS)
def test_who_keeps_something_as_large_as_x_is_told_nothing_of_how(keeper):
    """An inner function is one way to keep it; a partial, a list or ctx are others."""
    message = n14.check_split(keeper).message
    assert "something as large as x is kept" in message
    assert "inner function" not in message


def test_an_idle_rank_that_owes_a_w_is_told_so():
    late = edited(solved.fill_holes, ("len(owed) > j", "False"))
    roomy = n14.one_stage(4, 3, 14)._replace(room=[99] * 3)
    said = n14.fault_in(late, [roomy._replace(ticks=0)])
    assert "takes 16 ticks, 0 are asked for. Rank 0 is idle from 8 to 9, and could do 0W0" in said
    slow = n14.fault_in(edited(solved.fill_holes, ("n - j)", "max(n - 1 - j, 1))")), [roomy])
    assert "is idle from" in slow
    assert "which it does only later" in slow


def test_the_wait_that_is_named_is_one_and_the_longest_with_a_w_owed():
    """Floats leave waits of 1e-15 ticks; and a W is no help in a hole that is shorter than others."""
    contest = [n14.contest(8, 4, 0.3, 6)]
    late = n14.fault_in(lambda m, n, message, room: solved.listed(m, n, 2 * message, room)[1], contest)
    begin, end = map(float, re.search(r"rom ([\d.]+) to ([\d.]+)", late).groups())
    assert end > begin
    orders = [zbv(8, 4).actions(rank) for rank in range(4)]
    said = n14.fault_in(lambda m, n, message, room: orders, contest)
    assert "Rank 1 is idle from 24.9 to 25.5, and could do 1W5" in said


def test_whatever_passes_the_second_exercise_is_legal_small_and_at_the_floor():
    for m, n in [(m, n) for m, n in SIZES if m >= n]:
        for answer in (solved.fill_holes, answers.tick_by_tick):
            made = solved.table("", answer(m, n))
            schedules.validate(made, micro_batches=m)
            assert simulate(made).makespan == 3 * m + n - 1
            assert max(live_activations(made)) <= n


def test_no_order_with_a_stage_a_rank_gets_below_the_floor():
    draw = random.Random(0)
    for m, n, message in ((4, 3, 0.0), (5, 2, 0.5), (3, 4, 0.3)):
        for _ in range(20):
            ticks, orders = solved.listed(m, n, message, draw.randint(n, m + n), draw)
            assert simulate(solved.table("", orders), communicate=message).makespan == pytest.approx(ticks)
            assert ticks > (n - 1) * (1 + message) + 3 * m - 1e-9


def test_the_contests_are_won_by_nobody_of_lib_and_lost_without_the_room():
    for contest in n14.CONTESTS:
        message, room = contest[2:]
        ours = solved.table("", solved.search(*contest))
        best, name = n14.best_maker(*contest)
        assert name == "ZB-V"
        assert simulate(ours, communicate=message).makespan < best
        assert max(held(ours)) <= room
    for message, room, ticks, best in ((0.5, 4, 33, (32.5, "ZB-V")), (0, 5, 27, (25, "interleaved zero bubble"))):
        made = solved.table("", solved.search(8, 4, message, room))
        assert simulate(made, communicate=message).makespan == pytest.approx(ticks)
        assert n14.best_maker(8, 4, message, room) == best, "less room or free messages: either alone reverses it"
    assert [solved.listed(*contest)[0] for contest in n14.CONTESTS] == [32, 31], "one pass"


def test_a_place_in_an_order_counts_from_0_in_every_sentence():
    def too_many(m, n):
        return [
            [t for t in order if t[0] != "W"] + [t for t in order if t[0] == "W"] for order in solved.fill_holes(m, n)
        ]

    assert "rank 0 holds 4 activations after 0F3, in slot 4; " in n14.check_fill(too_many).message


# ---- the warm-up


@pytest.mark.parametrize("message", [0, 0.1, 0.5, 1, 2, 4])
def test_the_warm_up_is_as_fast_as_gpipe_and_with_one_forward_less_a_long_step_is_slower(message):
    for m, n in SIZES:
        ahead = [solved.forwards_ahead(j, n, 1, 2, message) for j in range(n)]
        found, best = (simulate(s, communicate=message).makespan for s in (with_warm_up("", m, ahead), gpipe(m, n)))
        assert found == pytest.approx(best)
    ahead = [solved.forwards_ahead(j, 4, 1, 2, message) for j in range(4)]
    short = with_warm_up("", 64, [ahead[0] - 1, *ahead[1:]])
    assert simulate(short, communicate=message).makespan > simulate(gpipe(64, 4), communicate=message).makespan + 0.5


@pytest.mark.parametrize("message", [0, 0.25, 2])
def test_with_the_warm_up_a_rank_never_waits_from_its_first_backward_to_its_last_forward_with_less_it_does(message):
    def waiting(ahead):
        table = with_warm_up("", 30, ahead)
        rows = [table.actions(rank) for rank in range(4)]
        ranks = []
        for rank, _, _, action, _ in waits_for(table, communicate=message):
            ops = [one.op for one in rows[rank]]
            steady = range(ops.index("B") + 1, len(ops) - ops[::-1].index("F"))
            if action is not None and rows[rank].index(action) in steady:
                ranks.append(rank)
        return ranks

    ahead = [solved.forwards_ahead(j, 4, 1, 2, message) for j in range(4)]
    assert waiting(ahead) == []
    for j in range(3):
        assert waiting([*ahead[:j], ahead[j] - 1, *ahead[j + 1 :]]).count(j) > 3


def test_what_the_reader_writes_equals_lib_and_idles_as_the_formulas_say():
    for n, groups, v in itertools.product(range(1, 5), (1, 2, 3), (1, 2, 3)):
        m = n * groups
        mine = solved.table("", solved.interleaved(m, n, v))
        assert mine.ranks == schedules.interleaved_one_f_one_b(m, n, v).compact().ranks
        assert simulate(mine, 1 / v, 2 / v).bubble == pytest.approx((n - 1) / (v * m + n - 1))
        assert live_activations(mine)[0] == min(v * m, (v - 1) * n + 2 * (n - 1) + 1)
    for m, n in SIZES:
        mine = solved.table("", solved.fill_holes(m, n))
        assert mine.ranks == zero_bubble_h1(m, n).compact().ranks
        assert max(live_activations(mine)) == min(m, n)
        for f, i, w in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 1.5), (0.5, 2, 1)) if m >= n else ():
            idle = simulate(mine, f, i + w, w).makespan - m * (f + i + w)
            assert idle == pytest.approx((n - 1) * max(f + i - w, f, i))
        if m >= n:  # behind its last I each rank has these W's left
            ops = ["".join(action.op for action in order) for order in mine.ranks]
            assert [len(each) - 1 - each.rindex("I") for each in ops] == list(range(1, n + 1))


def test_only_steps_of_zb_v_fit_into_each_other():
    table = zbv(8, 4)
    ends = [simulate(n14.in_a_row(table, k), 0.5, 1).makespan for k in (1, 2, 3)]
    assert ends == [25.5, 49.5, 73.5]
    for made in (gpipe(8, 4), schedules.one_f_one_b(8, 4), zero_bubble_h1(8, 4), schedules.dualpipe_v(8, 4)):
        share = 4 / made.stages
        trace = simulate(made, share, 2 * share)
        first = trace.only(lane="rank 0")
        assert (first.start, first.end) == (0, trace.end)
    refuses(schedules.ScheduleError, "", simulate, with_warm_up("", 32, (4, 8, 3, 1)))


# ---- the two halves


def test_what_a_split_layer_keeps_too_long_is_seen():
    kept = []

    class Keeps(split_answers.Detached):
        @staticmethod
        def forward(ctx, x, weight, later):
            kept.append(x)
            return split_answers.Detached.forward(ctx, x, weight, later)

        @staticmethod
        def backward(ctx, gradient):
            return split_answers.Detached.backward(ctx, gradient)

    assert "x is still alive" in n14.check_split(Keeps).message
    for said, old, new in (
        ("holds a NoneType", "append(add_to_weight)", "append(add_to_weight())"),
        ("holds a tuple", "append(add_to_weight)", "append((add_to_weight,))"),
        ("is None at first", "part if weight.grad is None else weight.grad + part", "weight.grad + part"),
        ("while somebody has y, x is still alive", "ctx.later = later", "ctx.later, ctx.x = later, x"),
    ):
        assert said in n14.check_split(edited(solved.SplitLinear, (old, new))).message


APPEND = "ctx.later.append(add_to_weight)"
ADD = "weight.grad = part if weight.grad is None else weight.grad + part"


def test_a_function_that_empties_the_list_takes_the_other_layers_with_it():
    answer = edited(solved.SplitLinear, (ADD, f"{ADD}\n            ctx.later.clear()"))
    assert "leaves one weight without a gradient" in n14.check_split(answer).message


@pytest.mark.parametrize(
    "sum_of_rows",
    [
        "(gradient[:, :, None] * x[:, None, :]).sum(0)",
        "sum(torch.outer(a, b) for a, b in zip(gradient, x))",
    ],
)
def test_a_sum_over_rows_that_is_no_matrix_product_is_not_praised_as_one(sum_of_rows):
    answer = edited(solved.SplitLinear, ("gradient.T @ x", sum_of_rows))
    assert "no matrix product in W" in n14.check_split(answer).message


def test_a_product_that_is_added_in_place_is_counted_as_one_and_two_as_two():
    twice = edited(
        solved.SplitLinear, ("part = gradient.T @ x", "part = (gradient.T @ x).addmm_(gradient.T, x, alpha=0)")
    )
    assert "W costs 2 matrix products" in n14.check_split(twice).message


RETURN = "return gradient @ weight, None, None"


def test_a_gradient_that_nobody_may_change_in_place_is_refused():
    answer = edited(solved.SplitLinear, ("torch.no_grad()", "torch.inference_mode()"))
    assert "is an inference tensor" in n14.check_split(answer).message
    answer = edited(solved.SplitLinear, (RETURN, f"with torch.inference_mode():\n            {RETURN}"))
    assert "the gradient of x is an inference tensor" in n14.check_split(answer).message


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("ctx.g = gradient", "while somebody has y, the gradient that came in is still alive"),
        ("ctx.x = x.detach()", "while somebody has y, x is still alive"),
        ("ctx.g = gradient[:1]", "while somebody has y, the gradient that came in is still alive"),
        ("seen[:] = [gradient]", "the gradient that came in is still alive when I and W are done, and y is gone"),
        ("ctx.more = more = gradient @ weight", "while somebody has y, the gradient of x is still alive"),
    ],
)
def test_who_keeps_a_gradient_or_a_view_is_seen_too(keep, said):
    after = RETURN.replace("gradient @ weight", "more") if "more" in keep else RETURN
    answer = edited(solved.SplitLinear, (RETURN, f"{keep}\n        {after}"), names={"seen": []})
    assert said in n14.check_split(answer).message


@pytest.mark.parametrize(
    ("answer", "false"),
    [
        (edited(solved.SplitLinear, ("return gradient", "gradient @ weight\n        return gradient")), "has to wait"),
        (edited(solved.SplitLinear, (APPEND, APPEND + "\n        ctx.work = add_to_weight")), "Keep x by"),
        (split_answers.ZerosForWeight, "F has nothing to do with weight.grad"),
        (split_answers.IntoItsOwnList, "That is an ordinary layer"),
    ],
)
def test_nobody_is_told_the_mistake_of_another_who_fails_in_the_same_place(answer, false):
    assert false not in n14.check_split(answer).message


def test_who_is_slow_is_told_of_a_wait_that_the_floor_does_not_have():
    """Every order that reaches the floor waits for the first gradient: that wait explains nothing."""
    for slow in (solved.beat_1f1b, edited(solved.fill_holes, ("len(owed) > j", "len(owed) > max(j - 1, 0)"))):
        message = n14.check_fill(slow).message
        assert "to do 0I0" not in message
        assert "waits for" in message


def test_whose_last_rank_pauses_is_told_of_that_pause():
    """At the end the ranks in front wait in each order of exercise 5."""

    def in_one_go(m, n, v):
        both = [
            [(op, s * n + j, i) for i in range(m) for s in range(v)[:: 1 if op == "F" else -1]]
            for op in "FB"
            for j in range(n)
        ]
        return [solved.alternate(both[j], both[n + j], (n - j) * v) for j in range(n)]

    assert "rank 1 waits for" in n14.check_interleaved(in_one_go).message
    late = edited(solved.fill_holes, ("n - j)", "n)"), ("len(owed) > j", "owed"))
    assert "rank 2 waits for" in n14.check_fill(late).message


@pytest.mark.parametrize("more", ["seen.append(x)", "add_to_weight.me = add_to_weight"])
def test_who_keeps_x_elsewhere_is_not_told_that_the_node_of_y_keeps_it(more):
    answer = edited(solved.SplitLinear, (APPEND, f"{APPEND}\n        {more}"), names={"seen": []})
    message = n14.check_split(answer).message
    assert "something of yours still holds it" in message
    assert "save_for_backward" not in message


def test_who_keeps_the_last_x_only_is_not_told_that_it_does_not_add():
    answer = edited(
        solved.SplitLinear,
        ("        def add_to_weight", "        weight.pending = (x, gradient)\n\n        def add_to_weight"),
        ("part = gradient.T @ x", "part = weight.pending[1].T @ weight.pending[0]"),
    )
    verdict = n14.check_split(answer)
    assert not verdict
    assert "with = instead of +=" not in verdict.message


def test_who_allows_four_rounds_only_is_not_told_of_the_longer_task():
    def four(j, n, forward, backward, message):
        return 1 + (n - 1 - j) * min(4, 1 + ceil(2 * message / (forward + backward)))

    verdict = n14.check_forwards_ahead(four)
    assert not verdict
    assert "the longer of the two" not in verdict.message


def test_what_others_let_go_of_meanwhile_hides_nothing_that_is_kept():
    others = [torch.ones(1000)]

    class CopiesTheInput(solved.SplitLinear):
        @staticmethod
        def forward(ctx, x, weight, later):
            others.clear()
            return solved.SplitLinear.forward(ctx, x.clone(), weight, later)

        @staticmethod
        def backward(ctx, gradient):
            return solved.SplitLinear.backward(ctx, gradient)

    assert "after F 160 bytes are kept" in n14.check_split(CopiesTheInput).message


# ---- predictions


def test_a_guess_of_rank_0_is_told_nothing_of_the_other_ranks_nor_of_how_it_was_found():
    """With 4 forwards on rank 0, where rank 1 needs 5, no step ends: 1F1B's 118 ticks are another schedule's."""
    for said, told in ((4, "that is 1F1B's)"), (32, "that is GPipe's: "), (5, "to round up once for the whole way")):
        assert told in n14.guess_ahead(said, 32, 4, 0.25).message


def test_half_of_the_bubble_is_not_that_of_half_stages_and_no_whole_number_no_answer():
    for said in (16, 15.8, 0.158, "16 %", "15.79%"):
        assert "that is it" in n14.guess_interleaved(said, 8, 4, 2).message
    for said in (13.6, 14, 27, 0, "little"):
        assert "that is it" not in n14.guess_interleaved(said, 8, 4, 2).message
    assert "what splitting alone gives" in n14.guess_floor(30, 8, 4).message
    assert "that is it" in n14.guess_floor("27 ticks", 8, 4).message

    def floats(j, n, forward, backward, message):
        return 1 + (n - 1 - j) * (1 - (-2 * message // (forward + backward)))

    assert "`math.ceil` gives one" in n14.check_forwards_ahead(floats).message
