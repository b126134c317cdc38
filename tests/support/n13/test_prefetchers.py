"""Exercise 3 of notebook 13 at its edges: blocks at worst, the end of the epoch, pools, and a host that asks."""

from collections import deque
from functools import partial
from itertools import chain, islice

import pytest
import torch

from lib.streams import PretendGPU, find_races
from support.kit.mistakes import edited
from support.n13 import checks as n13
from support.n13.batch_users import SlowestGPU, User
from support.n13.prefetchers import by_order, without_a_bound
from support.n13.prefetching import blocks_of


def bounded(batches, gpu):
    """Copy one ahead; the host waits for the step before the last."""
    side = gpu.new_stream()
    used = []
    ready = None
    for x in chain(batches, [None]):
        if len(used) > 1:
            used.pop(0).synchronize()
        with gpu.use_stream(side):
            coming = None if x is None else (x.to(gpu.device, non_blocking=True), side.record_event())
        if ready is not None:
            user = gpu.current_stream()
            user.wait_event(ready[1])
            ready[0].record_stream(user)
            yield ready[0]
            used.append(user.record_event())
        ready = coming
        del coming


def in_turn(batches, gpu, count, at_the_end=True):
    """Take no memory for a batch: so many buffers, and the copy waits until its buffer has been read."""
    side = gpu.new_stream("copy")
    buffers = []
    used = []
    ready = None
    user = gpu.current_stream()
    try:
        for i, x in enumerate(chain(batches, [None])):
            coming = None
            if x is not None:
                with gpu.use_stream(side):
                    if len(buffers) < count:
                        buffers.append(gpu.empty_like(x))
                    if i >= count:
                        side.wait_event(used[i - count])
                    buffers[i % count].copy_(x, non_blocking=True)
                    coming = buffers[i % count], side.record_event()
            if ready is not None:
                user = gpu.current_stream()
                user.wait_event(ready[1])
                yield ready[0]
                used.append(user.record_event())
            ready = coming
    finally:
        side.wait_stream(user)
        for event in used[-count:] if at_the_end else []:
            side.wait_event(event)


WAITS = "        if len(used) > 1:\n            used.pop(0).synchronize()\n"
RECORDS = "            ready[0].record_stream(user)\n"
ASKS = WAITS.replace(
    "used.pop(0).synchronize()\n", "event = used.pop(0)\n            while not event.query():\n                pass\n"
)
MAKES = "    side = gpu.new_stream()\n"


@pytest.mark.parametrize("right", [bounded, edited(bounded, (WAITS, ASKS)), partial(in_turn, count=4), by_order])
def test_four_blocks_are_enough_however_they_are_had_and_a_host_may_ask_until_a_step_is_done(right):
    verdict = n13.check_prefetch(right)
    assert verdict.status == "right", verdict.message


@pytest.mark.parametrize(
    "says, wrong",
    [
        ("may take 5 blocks", edited(bounded, ("len(used) > 1", "len(used) > 2"))),
        ("the host has waited for 8", edited(bounded, ("len(used) > 1", "len(used) > 2"))),
        (
            "`record_stream` holds a dropped block back",
            edited(
                without_a_bound,
                (
                    "            yield ready[0]\n",
                    "            yield ready[0]\n            side.wait_stream(gpu.current_stream())\n",
                ),
            ),
        ),
        ("the host has waited for 0", without_a_bound),
        (
            "They come from the pools of 12 streams",
            edited(bounded, (MAKES, ""), (WAITS, WAITS + "        side = gpu.new_stream()\n")),
        ),
        (
            "behind the last batch its next owner",
            edited(bounded, (RECORDS, f"            if coming is not None:\n    {RECORDS}")),
        ),
        ("a list or variable of yours keeps", partial(in_turn, count=6)),
    ],
)
def test_a_prefetcher_that_takes_more_or_leaves_the_last_batch_is_told_what_is_true_of_it(says, wrong):
    verdict = n13.check_prefetch(wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_a_copy_in_the_stream_of_the_steps_is_told_how_another_one_is_made_current():
    wrong = edited(bounded, ("gpu.use_stream(side)", "gpu.use_stream(gpu.current_stream())"))
    message = n13.check_prefetch(wrong).message
    assert "batch 1 is copied in the stream that computes" in message
    assert "`with gpu.use_stream(stream):` makes another one current" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there torch has a stream of CUDA to give")
def test_who_asks_torch_for_the_current_stream_is_told_whom_to_ask():
    wrong = edited(bounded, ("gpu.current_stream()", "torch.cuda.current_stream()"))
    assert "Ask `gpu` for streams and memory, not torch." in n13.check_prefetch(wrong).message


def test_behind_a_drop_stands_a_mark_of_the_allocators_own():
    user = User("unlucky")
    assert isinstance(user.gpu, SlowestGPU)
    assert blocks_of(user.use(bounded, 40).operations) == 4
    assert blocks_of(User().use(bounded, 40).operations) == 3
    assert blocks_of(User("unlucky").use(by_order, 40).operations) == 2


# ---- users who keep a batch's name, and users who ask for each batch in another stream


def marked_elsewhere(batches, gpu):
    """Take the mark behind a step in the stream that is current when the next batch is asked for."""
    side = gpu.new_stream("copy")
    used = []
    ready = None
    for x in chain(batches, [None]):
        if len(used) > 1:
            used.pop(0).synchronize()
        with gpu.use_stream(side):
            coming = None if x is None else (x.to(gpu.device, non_blocking=True), side.record_event())
        if ready is not None:
            gpu.current_stream().wait_event(ready[1])
            ready[0].record_stream(gpu.current_stream())
            yield ready[0]
            used.append(gpu.current_stream().record_event())
        ready = coming
        del coming


@pytest.mark.parametrize("keeps", [[], ["keeps"]])
def test_ours_needs_four_blocks_also_for_a_user_who_asks_for_each_batch_in_another_stream(keeps):
    assert blocks_of(User("wanders", *keeps).use(marked_elsewhere, 12).operations) == 12
    for right in (n13.one_ahead, by_order):
        found = User("wanders", "ends", *keeps).use(right, 12).operations
        assert blocks_of(found) <= 4
        assert not find_races(found)


def dropping_its_own(batches, gpu, lead=1):
    """Keep no name of a batch that is handed over: the mark of a user's drop stands in front of the event."""
    side = gpu.new_stream("copy")
    used = deque()
    ready = None
    for x in chain(batches, [None]):
        if len(used) > lead:
            used.popleft().synchronize()
        with gpu.use_stream(side):
            coming = None if x is None else [x.to(gpu.device, non_blocking=True), side.record_event()]
        if ready is not None:
            user = gpu.current_stream()
            user.wait_event(ready[1])
            ready[0].record_stream(user)
            yield ready.pop(0)
            used.append(user.record_event())
        ready = coming


class AsAnIterator:
    """Be no generator: what a generator does behind its yield, do when the next batch is asked for."""

    def __init__(self, batches, gpu):
        self.batches = iter(batches)
        self.gpu = gpu
        self.side = gpu.new_stream("copy")
        self.used = deque()
        self.user = None
        self.ready = self.copy_of_the_next()

    def __iter__(self):
        return self

    def copy_of_the_next(self):
        x = next(self.batches, None)
        if x is None:
            return None
        with self.gpu.use_stream(self.side):
            return x.to(self.gpu.device, non_blocking=True), self.side.record_event()

    def __next__(self):
        if self.user is not None:
            self.used.append(self.user.record_event())
        if len(self.used) > 1:
            self.used.popleft().synchronize()
        if self.ready is None:
            raise StopIteration
        batch, copied = self.ready
        self.ready = self.copy_of_the_next()
        self.user = self.gpu.current_stream()
        self.user.wait_event(copied)
        batch.record_stream(self.user)
        return batch


def held_until_waited_for(batches, gpu, at_the_end=True):
    """Hold a batch until the copy stream waits for its step, and wait for the step before the last only."""
    side = gpu.new_stream("copy")
    held = deque()
    user = gpu.current_stream()
    ready = None
    try:
        for x in chain(batches, [None]):
            if len(held) > 1:
                side.wait_event(held.popleft()[1])
            with gpu.use_stream(side):
                coming = None if x is None else (x.to(gpu.device, non_blocking=True), side.record_event())
            if ready is not None:
                user = gpu.current_stream()
                user.wait_event(ready[1])
                yield ready[0]
                held.append((ready[0], user.record_event()))
            ready = coming
            del coming
    finally:
        side.wait_stream(user)
        for _, event in held if at_the_end else []:
            side.wait_event(event)


def one_piece(batches, gpu, count):
    """Take one block for all: a ring of so many places."""
    side = gpu.new_stream("copy")
    ring = None
    used = []
    user = gpu.current_stream()
    ready = None
    try:
        for i, x in enumerate(chain(batches, [None])):
            coming = None
            if x is not None:
                with gpu.use_stream(side):
                    if ring is None:
                        ring = gpu.empty_like(torch.empty(count, *x.shape))
                    if i >= count:
                        side.wait_event(used[i - count])
                    ring[i % count].copy_(x, non_blocking=True)
                    coming = ring[i % count], side.record_event()
            if ready is not None:
                user = gpu.current_stream()
                user.wait_event(ready[1])
                yield ready[0]
                used.append(user.record_event())
            ready = coming
    finally:
        side.wait_stream(user)
        for event in used[-count:]:
            side.wait_event(event)


def waited_for_elsewhere(batches, gpu, only_who_leaves=False):
    """Hand back by order, but to the stream that is current behind the yield, or only when the user leaves there."""
    side = gpu.new_stream("copy")
    ready = None
    for x in chain(batches, [None]):
        with gpu.use_stream(side):
            coming = None if x is None else (x.to(gpu.device, non_blocking=True), side.record_event())
        if ready is not None:
            user = gpu.current_stream()
            user.wait_event(ready[1])
            try:
                yield ready[0]
            except GeneratorExit:
                side.wait_stream(gpu.current_stream())
                raise
            side.wait_stream(user if only_who_leaves else gpu.current_stream())
        ready = coming
        del coming


YIELDS = "            yield ready[0]\n"
POPS = "            used.popleft().synchronize()\n"
MARKS = "            used.append(user.record_event())\n"


@pytest.mark.parametrize(
    "right",
    [
        dropping_its_own,
        AsAnIterator,
        held_until_waited_for,
        partial(one_piece, count=4),
        partial(one_piece, count=2),
        edited(bounded, (MARKS, "            side.wait_stream(user)\n            used.append(side.record_event())\n")),
    ],
)
def test_prefetchers_of_other_shapes_are_right(right):
    verdict = n13.check_prefetch(right)
    assert verdict.status == "right", verdict.message


ELSEWHERE = "if its user asks for each batch in another stream, "
PLAIN = "as a plain `for` does, 12 batches may take 5 blocks"


@pytest.mark.parametrize(
    "says, wrong",
    [
        (ELSEWHERE + "12 batches may take 12 blocks", marked_elsewhere),
        ("the host has waited for 0. A batch is used in the stream that was current when it was", marked_elsewhere),
        (PLAIN, partial(dropping_its_own, lead=2)),
        ("10 steps are launched, and the host has waited for 8.", partial(dropping_its_own, lead=2)),
        (ELSEWHERE + "copy of batch 2 (copy) writes A while F0 (another)", waited_for_elsewhere),
        ("leaves the loop there behind batch 1, its next", partial(waited_for_elsewhere, only_who_leaves=True)),
        (ELSEWHERE + "its next owner (copy) writes", partial(in_turn, count=4, at_the_end=False)),
        (ELSEWHERE + "its next owner (copy) writes", partial(held_until_waited_for, at_the_end=False)),
        ("it is clone that takes some of them", edited(bounded, (YIELDS, YIELDS.replace("[0]", "[0].clone()")))),
        ("12 batches may take 6 blocks of device memory: a list or variable", partial(one_piece, count=6)),
        ("may take 5 blocks", edited(bounded, (MARKS, ""), (YIELDS, MARKS + YIELDS))),
        (
            ELSEWHERE + "12 batches may take 12 blocks",
            edited(bounded, (MARKS, ""), (YIELDS, MARKS + YIELDS), ("len(used) > 1", "used")),
        ),
        ("12 batches may take 12 blocks", edited(bounded, ("used.pop(0).synchronize()", "used.pop(0).query()"))),
        (
            "stands still until copy of batch 2 (copy) is done",
            edited(dropping_its_own, (POPS, POPS + "            ready[1].synchronize()\n")),
        ),
    ],
)
def test_a_prefetcher_whose_fault_only_some_users_meet_is_told_what_is_true_of_it(says, wrong):
    verdict = n13.check_prefetch(wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_who_takes_a_batch_into_yet_another_stream_says_so_and_lets_the_one_that_got_it_wait():
    gpu = PretendGPU()
    got = gpu.current_stream()
    elsewhere = gpu.new_stream("elsewhere")
    batches = [gpu.host(torch.full((4,), float(i)), f"batch {i}") for i in range(12)]
    for batch in n13.one_ahead(batches, gpu):
        elsewhere.wait_stream(got)
        with gpu.use_stream(elsewhere), gpu.span(elsewhere, "", "F"):
            batch.square()
        batch.record_stream(elsewhere)
        got.wait_stream(elsewhere)
        del batch
    assert not find_races(gpu.operations)
    assert blocks_of(gpu.operations) <= 4


# ---- what a batch is: pinned, of a shape of its own, and of a loader that may raise


COPIES = "x.to(gpu.device, non_blocking=True)"


@pytest.mark.parametrize(
    "looks",
    ["x.pin_memory().to(gpu.device, non_blocking=True)", "float(x.sum()) >= 0 and " + COPIES],
)
def test_the_host_may_look_at_a_batch_and_pin_what_is_pinned(looks):
    verdict = n13.check_prefetch(edited(bounded, (COPIES, f"({looks})")))
    assert verdict.status == "right", verdict.message


def swallowing(batches, gpu):
    """Take whatever the loader raises for the end of the epoch."""

    def until_it_raises():
        try:
            yield from batches
        except Exception:
            return

    return bounded(until_it_raises(), gpu)


WAITS_FOR = "            user.wait_event(ready[1])\n"
ONLY_AT_FIRST = "            if len(gpu.operations) < 60:\n    "


def in_a_stream_of_an_earlier_call(batches, gpu, kept={}):  # noqa: B006
    """Make one stream for all calls, whatever GPU they are for."""
    side = kept.setdefault("side", gpu.new_stream("copy"))
    return edited(bounded, (MAKES, "    side = gpu.kept\n"))(batches, with_a_stream(gpu, side))


def with_a_stream(gpu, side):
    gpu.kept = side
    return gpu


@pytest.mark.parametrize(
    "says, wrong",
    [
        (
            "a batch is copied from memory that is not pinned",
            edited(bounded, (COPIES, COPIES.replace("x.", "x.clone()."))),
        ),
        (
            "it is cat that takes some of them",
            edited(bounded, (COPIES, f"torch.cat([part.{COPIES[2:]} for part in x.chunk(2)])")),
        ),
        ("The loader raised behind batch 1, and your loop ended as an epoch ends", swallowing),
        (
            "your code raised RuntimeError",
            partial(edited(in_turn, ("gpu.empty_like(x)", "gpu.empty_like(torch.zeros(4))")), count=2),
        ),
        ("copy is a stream of another PretendGPU", in_a_stream_of_an_earlier_call),
        ("with 17 batches F6 (compute) reads", edited(bounded, (WAITS_FOR, ONLY_AT_FIRST + WAITS_FOR))),
        ("with 17 batches copy of batch", edited(bounded, (RECORDS, ONLY_AT_FIRST + RECORDS))),
        (
            "its next owner (copy) writes",
            partial(edited(in_turn, ("if at_the_end else", "if len(used) < 8 else")), count=3),
        ),
        ("with 17 batches expected", lambda batches, gpu: bounded(islice(batches, 12), gpu)),
        (
            "Nobody has given the block back between the two: it is a wait that is missing",
            partial(
                edited(
                    in_turn,
                    ("                        side.wait_event(used[i - count])", "                        pass"),
                ),
                count=3,
            ),
        ),
    ],
)
def test_a_prefetcher_that_mistakes_its_batches_is_told_so(says, wrong):
    verdict = n13.check_prefetch(wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message
