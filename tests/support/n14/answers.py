"""Right answers to the exercises of notebook 14 that are not ours: other orders, other ways to the same ones."""

from math import ceil

from lib.schedules import live_activations, simulate, zbv
from support.n14 import solved
from support.n14.warm_up import put_off, with_warm_up

TABLE = """
0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0F6 0I3 0W3 0F7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7
1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1F6 1I4 1W3 1F7 1I5 1W4 1I6 1W5 1I7 1W6 1W7
2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2F6 2I5 2W3 2F7 2I6 2W4 2I7 2W5 2W6 2W7
3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3F6 3I6 3W3 3F7 3I7 3W4 3W5 3W6 3W7
"""


def by_hand(m, n):
    """One table, typed."""
    return [[(word[1], int(word[0]), int(word[2:])) for word in line.split()] for line in TABLE.strip().splitlines()]


def as_tuples(m, n):
    return tuple(tuple(map(list, row)) for row in solved.fill_holes(m, n))


def tick_by_tick(m, n):
    """Keep to 1F1B's order of F and I; where a rank would wait, or is full, it does the oldest W."""
    waiting = [
        solved.alternate([("F", j, i) for i in range(m)], [("I", j, i) for i in range(m)], n - j) for j in range(n)
    ]
    orders = [[] for _ in range(n)]
    owed = [[] for _ in range(n)]
    held = [0] * n
    end = {}
    tick = 0
    while any(waiting) or any(owed):
        for j in range(n):
            if waiting[j]:
                op, _, i = waiting[j][0]
                before = ("F", j - 1, i) if op == "F" else ("I", j + 1, i)
                there = not 0 <= before[1] < n or end.get(before, tick + 1) <= tick
                if there and (op == "I" or held[j] < n):
                    orders[j].append(waiting[j].pop(0))
                    end[op, j, i] = tick + 1
                    held[j] += op == "F"
                    if op == "I":
                        owed[j].append(("W", j, i))
                    continue
            if owed[j]:
                orders[j].append(owed[j].pop(0))
                held[j] -= 1
        tick += 1
    return orders


def whole_on_rank_0(m, n):
    """Whole backwards on rank 0, where no gradient waits for the W in them."""
    first = solved.alternate([("F", 0, i) for i in range(m)], [("B", 0, i) for i in range(m)], n)
    return [first, *solved.fill_holes(m, n)[1:]]


def newest_first(m, n):
    """The W that is owed for the shortest time goes first; as many are owed."""
    return _with_owed(m, n, lambda j: j, oldest=False)


def by_place(m, n):
    """W k stands behind I k + j, or at the end."""
    orders = []
    for j, order in enumerate(solved.fill_holes(m, n)):
        rest = [task for task in order if task[0] != "W"]
        for k in range(m):
            after = min(k + j, m - 1)
            place = rest.index(("I", j, after)) + 1
            while place < len(rest) and rest[place][0] == "W":
                place += 1
            rest.insert(place, ("W", j, k))
        orders.append(rest)
    return orders


def _with_owed(m, n, room, oldest=True, ahead=lambda j, n: n - j):
    """1F1B with I for B, in which rank j puts room(j) W's off."""
    orders = []
    for j in range(n):
        forwards, halves = ([(op, j, i) for i in range(m)] for op in "FI")
        order = []
        owed = []
        for task in solved.alternate(forwards, halves, ahead(j, n)):
            order.append(task)
            if task[0] == "I":
                owed.append(("W", *task[1:]))
            if len(owed) > room(j):
                order.append(owed.pop(0 if oldest else -1))
        orders.append(order + owed)
    return orders


def up_to_five_ranks(m, n):
    return solved.fill_holes(m, n) if n <= 5 else solved.beat_1f1b(m, n)


def four_owed_at_most(m, n):
    return _with_owed(m, n, lambda j: min(j, 4))


def five_ahead_at_most(m, n):
    return _with_owed(m, n, lambda j: j, ahead=lambda j, n: min(n - j, 5))


def only_where_m_is_a_multiple(m, n):
    return solved.fill_holes(m, n) if m % n == 0 else solved.beat_1f1b(m, n)


def only_where_m_is_more(m, n):
    return solved.fill_holes(m, n) if m > n else solved.beat_1f1b(m, n)


def last_rank_first(m, n):
    return solved.fill_holes(m, n)[::-1]


def without_the_last_w(m, n):
    return [[task for task in order if task != ("W", n - 1, m - 1)] for order in solved.fill_holes(m, n)]


def one_w_twice(m, n):
    first, *others = solved.fill_holes(m, n)
    return [[*first, ("W", 0, 0)], *others]


def whole_on_the_last_rank(m, n):
    *others, _ = solved.fill_holes(m, n)
    last = [(op, n - 1, i) for i in range(m) for op in "FB"]
    return [*others, last]


def one_more_owed_where_m_is_small(m, n):
    return _with_owed(m, n, lambda j: j + (n > 5))


def only_up_to_twelve(m, n):
    return solved.fill_holes(m, n) if m <= 12 else solved.beat_1f1b(m, n)


def only_up_to_thirty(m, n):
    return solved.fill_holes(m, n) if m <= 30 else solved.beat_1f1b(m, n)


def first_two_swapped(m, n):
    orders = [list(order) for order in solved.fill_holes(m, n)]
    orders[0][:2] = orders[0][1::-1]
    return orders


WRONG_FILLS = [
    up_to_five_ranks,
    four_owed_at_most,
    five_ahead_at_most,
    only_where_m_is_a_multiple,
    only_where_m_is_more,
    last_rank_first,
    without_the_last_w,
    one_w_twice,
    whole_on_the_last_rank,
    one_more_owed_where_m_is_small,
    first_two_swapped,
    only_up_to_twelve,
    only_up_to_thirty,
]


def neighbour_by_neighbour(j, n, forward, backward, message):
    if j == n - 1:
        return 1
    way = forward + backward + 2 * message
    return neighbour_by_neighbour(j + 1, n, forward, backward, message) + ceil(way / (forward + backward))


def one_more_than_floor(j, n, forward, backward, message):
    """Wrong where two messages fill rounds exactly."""
    extra = int(2 * message / (forward + backward)) + 1 if message else 0
    return 1 + (n - 1 - j) * (1 + extra)


def mean_of_tasks(j, n, forward, backward, message):
    """Wrong: the mean of what a message takes of either task."""
    return 1 + (n - 1 - j) * (1 + ceil((message / forward + message / backward) / 2))


def by_the_longer_task(j, n, forward, backward, message):
    """Wrong: it divides by a task, not by a round."""
    return 1 + (n - 1 - j) * (1 + ceil(message / max(forward, backward)))


def eager_beyond_four_ranks(j, n, forward, backward, message):
    """Wrong for five ranks and more."""
    return solved.forwards_ahead(j, n, forward, backward, message) if n <= 4 else 1 + 2 * (n - 1 - j)


def round_in_whole_ticks(j, n, forward, backward, message):
    """Wrong where a round is no whole number of ticks: it rounds the divisor up, too."""
    return 1 + (n - 1 - j) * (1 + ceil(2 * message / ceil(forward + backward)))


def by_waiting(j, n, forward, backward, message):
    """Try numbers, from the last rank on, until a long step of the ranks behind is as short as it gets."""
    m = 40
    ahead = [1]
    for _ in range(n - 1 - j):
        many = simulate(with_warm_up("", m, [m] * (len(ahead) + 1)), forward, backward, communicate=message).makespan
        more = ahead[0]
        while (
            simulate(with_warm_up("", m, [more, *ahead]), forward, backward, communicate=message).makespan > many + 1e-9
        ):
            more += 1
        ahead.insert(0, more)
    return ahead[0]


def one_round(m, n, v):
    """A warm-up that is one forward longer per rank behind, not two: with free messages it is as fast."""
    orders = []
    for j, order in enumerate(solved.interleaved(m, n, v)):
        both = [[task for task in order if task[0] == op] for op in "FB"]
        orders.append(solved.alternate(*both, (v - 1) * n + n - j))
    return orders


def in_turn_up_to_four_ranks(m, n, v):
    """Wrong for five ranks and more: all forwards first."""
    if n < 5:
        return solved.interleaved(m, n, v)
    return [sorted(order, key=lambda task: task[0], reverse=True) for order in solved.interleaved(m, n, v)]


def by_positions(m, n, v):
    """Compute the k-th forward and backward by arithmetic, as torch does."""
    orders = []
    for j in range(n):

        def place(k, back, j=j):
            group, rest = divmod(k, n * v)
            stage, inside = divmod(rest, n)
            stage = v - 1 - stage if back else stage
            return stage * n + j, group * n + inside

        ahead = min(m * v, (v - 1) * n + 2 * (n - 1 - j) + 1)
        order = [("F", *place(k, False)) for k in range(ahead)]
        for k in range(m * v):
            order.append(("B", *place(k, True)))
            if ahead + k < m * v:
                order.append(("F", *place(ahead + k, False)))
        orders.append(order)
    return orders


def known_by_heart(m, n, message, room):
    """Return a table that somebody has found before, for these two contests alone."""
    return KNOWN[m, n]


KNOWN = {(8, 4): solved.search(8, 4, 0.5, 5), (8, 3): solved.search(8, 3, 1, 4)}


def two_stages(m, n, message, room):
    """Move neighbours of ZB-V's orders, one stage at a time, while it gets shorter and fits."""
    rows = [list(zbv(m, n).compact().actions(rank)) for rank in range(n)]
    best = _ticks(rows, message, room)
    going = True
    while going:
        going = False
        for row in rows:
            for distance in range(1, 16):
                for k in range(len(row) - distance):
                    task = row.pop(k + distance)
                    row.insert(k, task)
                    found = _ticks(rows, message, room)
                    if found < best - 1e-9:
                        best = found
                        going = True
                        if best < {4: 32.5, 3: 35.5}[n] - 1e-6:
                            return rows
                    else:
                        row.insert(k + distance, row.pop(k))
    return rows


def _ticks(rows, message, room):
    made = solved.table("", rows)
    if max(live_activations(made)) > 2 * room:
        return float("inf")
    try:
        return simulate(made, 0.5, 1, communicate=message).makespan
    except ValueError:
        return float("inf")


def first_contest_only(m, n, message, room):
    return solved.search(m, n, message, room) if n == 4 else solved.fill_holes(m, n)


def in_the_first_contests_room(m, n, message, room):
    return solved.search(m, n, message, 5)


def with_more_room(m, n, message, room):
    return solved.listed(m, n, message, 2 * m)[1]


def put_off_within_the_room(m, n, message, room):
    """Wrong where the room is less than the warm-up asks for: the notebook's *both*, cut off there."""
    ahead = [min(room, solved.forwards_ahead(j, n, 1, 2, message)) for j in range(n)]
    return put_off(with_warm_up("", m, ahead)).ranks


def without_messages(m, n, message, room):
    """Wrong: made for free messages."""
    return solved.search(m, n, 0, room)


def with_a_w_missing(m, n, message, room):
    return [[task for task in order if task != ("W", 0, 0)] for order in KNOWN[m, n]]


def fewer_micro_batches(m, n, message, room):
    return solved.search(m - 1, n, message, room)


def a_rank_fewer(m, n, message, room):
    return KNOWN[m, n][:-1]


WRONG_SEARCHES = [
    first_contest_only,
    in_the_first_contests_room,
    with_more_room,
    put_off_within_the_room,
    without_messages,
    with_a_w_missing,
    fewer_micro_batches,
    a_rank_fewer,
]
