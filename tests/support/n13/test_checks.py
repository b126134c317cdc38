"""What is particular about the checks of notebook 13; what all exercises have in common is in test_detectors."""

from functools import partial
from itertools import chain, islice

import pytest

from lib.streams import DevicePrefetcher, find_races
from support.kit.mistakes import edited
from support.n13 import checks as n13
from support.n13 import prefetchers, timing


def test_the_programs_have_the_races_of_find_races_and_enough_of_both_kinds():
    ours = {name: n13.ask_clocks(n13.check_step.reference)(name) for name in n13.programs()}
    found = {name: find_races(operations) for name, operations in n13.programs().items()}
    theirs = {name: [f"{race.earlier.label} and {race.later.label}" for race in races] for name, races in found.items()}
    assert ours == theirs
    assert 5 <= sum(map(bool, ours.values())) <= len(ours) - 5


def test_clocks_that_miss_an_entry_are_told_what_an_absent_one_means():
    verdict = n13.check_step(lambda lanes, events, op: lanes[op.lane] if op.kind == "launch" else {})
    assert verdict.status == "wrong"
    assert "your code raised KeyError: 'side'" in verdict.message
    assert "A new lane has an empty clock" in verdict.message


@pytest.mark.parametrize("timed, says", [(True, "wait for the later event"), (False, "enable_timing=True")])
def test_events_that_torch_would_refuse_are_refused(timed, says):
    def late_or_untimed(work, cuda):
        start, end = (cuda.Event(enable_timing=timed) for _ in range(2))
        start.record()
        work()
        end.record()
        if not timed:
            end.synchronize()
        return start.elapsed_time(end)

    verdict = n13.check_device_ms(late_or_untimed)
    assert verdict.status == "wrong"
    assert says in verdict.message


def with_fresh_inputs(gpu, stage, chunks, results):
    """Take an input's memory from the pool for each chunk, and tell the allocator who else reads it."""
    into = gpu.new_stream("in")
    compute = gpu.current_stream()
    out = gpu.new_stream("out")
    for x, result in zip(chunks, results, strict=True):
        with gpu.use_stream(into):
            buffer = x.to("cuda", non_blocking=True)
        compute.wait_stream(into)
        buffer.record_stream(compute)
        y = stage(buffer)
        out.wait_stream(compute)
        with gpu.use_stream(out):
            result.copy_(y, non_blocking=True)
        y.record_stream(out)
    out.synchronize()


def waiting_for_streams(gpu, stage, chunks, results):
    """Need no list of events: each wait_stream stands where nothing later is in the other stream yet."""
    into = gpu.new_stream("in")
    compute = gpu.current_stream()
    out = gpu.new_stream("out")
    with gpu.use_stream(into):
        buffers = [gpu.empty_like(chunks[0]) for _ in range(2)]
    free = [None, None]
    outputs = [None, None]
    fetched = [None, None]
    for i, x in enumerate(chunks):
        k = i % 2
        if free[k]:
            into.wait_event(free[k])
            compute.wait_event(fetched[k])
        with gpu.use_stream(into):
            buffers[k].copy_(x, non_blocking=True)
        compute.wait_stream(into)
        outputs[k] = None
        outputs[k] = stage(buffers[k])
        free[k] = compute.record_event()
        out.wait_stream(compute)
        with gpu.use_stream(out):
            results[i].copy_(outputs[k], non_blocking=True)
        fetched[k] = out.record_event()
    out.synchronize()


def test_another_right_loop_is_right_and_one_that_grows_loses_or_mixes_chunks_is_told():
    assert n13.check_streamed(waiting_for_streams)
    verdict = n13.check_streamed(with_fresh_inputs)
    assert verdict.status == "wrong"
    assert "blocks of device memory" in verdict.message
    verdict = n13.check_streamed(edited(with_fresh_inputs, ("        buffer.record_stream(compute)\n", "")))
    assert "[2] The input was dropped, and the next copy gets its memory from the pool" in verdict.message

    def first_only(gpu, stage, chunks, results):
        n13.stream_chunks(gpu, stage, chunks[:1], results[:1])

    def reversed_(gpu, stage, chunks, results):
        n13.stream_chunks(gpu, stage, chunks, results[::-1])

    for wrong in (first_only, reversed_):
        assert "the results should hold [1.0, 2.0" in n13.check_streamed(wrong).message


def with_other_needs(gpu, stage, chunks, results, outputs=2, inputs=2, waits=1, own=True):
    """Write the right loop; with a third output or input, more waits of the host, or buffers of compute's pool."""
    into = gpu.new_stream("in")
    compute = gpu.current_stream()
    out = gpu.new_stream("out")
    if not own:
        into.wait_stream(compute)
    with gpu.use_stream(into if own else compute):
        buffers = [gpu.empty_like(chunks[0]) for _ in range(inputs)]
    computed = []
    fetched = []
    kept = []
    for i, x in enumerate(chunks):
        if i >= inputs:
            into.wait_event(computed[i - inputs])
        with gpu.use_stream(into):
            buffers[i % inputs].copy_(x, non_blocking=True)
        compute.wait_event(into.record_event())
        if i >= 2:
            compute.wait_event(fetched[i - 2])
        kept = [*kept, stage(buffers[i % inputs])][1 - outputs :]
        computed.append(compute.record_event())
        out.wait_event(computed[i])
        with gpu.use_stream(out):
            results[i].copy_(kept[-1], non_blocking=True)
        fetched.append(out.record_event())
    for event in fetched[-waits:]:
        event.synchronize()


def on_the_host(gpu, stage, chunks, results):
    for x, result in zip(chunks, results, strict=True):
        result.copy_(stage(x))


def by_way_of_other_memory(gpu, stage, chunks, results):
    """Copy each output to memory of the host that nobody has asked for."""
    for i, x in enumerate(chunks):
        results[i] = stage(x.to(gpu.device, non_blocking=True)).to("cpu", non_blocking=True)


def in_a_stream_of_its_own(gpu, stage, chunks, results):
    with gpu.use_stream(gpu.new_stream("mine")):
        n13.stream_chunks(gpu, stage, chunks, results)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (
            on_the_host,
            "the device has run no C0, a copy from chunk 0, and no F0, its stage, and no D0, a copy into result 0.",
        ),
        (by_way_of_other_memory, "with 5 chunks: the device has run no D0, a copy into result 0."),
        (in_a_stream_of_its_own, "F0 ran in mine: call stage in the stream that was current"),
        (partial(with_other_needs, outputs=3), "3 more are in use: two of each are enough"),
        (partial(with_other_needs, inputs=3), "chunks are copied into 3 blocks of device memory"),
        (partial(with_other_needs, waits=9), "the host waits 5 times"),
        (partial(with_other_needs, own=False), "C0 waits for what compute did before"),
    ],
)
def test_a_loop_that_misses_the_task_is_told_where(wrong, says):
    assert n13.check_streamed(with_other_needs)
    verdict = n13.check_streamed(wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def but(before):
    """Return the right prefetcher, but with its own before(stream, side, batch, event) that a batch is handed over."""
    return lambda batches, gpu: n13.one_ahead(batches, gpu, before)


def wait_before_the_next_copy(batches, gpu):
    """Need no event behind a copy: the wait for the stream stands where no later copy is in it."""
    side = gpu.new_stream("copy")
    used = []
    ready = None
    for x in chain(batches, [None]):
        if len(used) > 1:
            used.pop(0).synchronize()
        user = gpu.current_stream()
        if ready is not None:
            user.wait_stream(side)
            ready.record_stream(user)
        with gpu.use_stream(side):
            coming = None if x is None else x.to("cuda", non_blocking=True)
        if ready is not None:
            yield ready
            used.append(user.record_event())
        ready = coming
        del coming


def two_buffers_in_turn(batches, gpu, at_the_end=True):
    """Take no memory for a batch at all: the copy waits until its buffer has been read."""
    side = gpu.new_stream("copy")
    buffers = []
    used = []
    ready = None
    user = gpu.current_stream()
    try:
        for i, x in enumerate(chain(batches, [None])):
            if x is not None:
                with gpu.use_stream(side):
                    if len(buffers) < 2:
                        buffers.append(gpu.empty_like(x))
                    if i >= 2:
                        side.wait_event(used[i - 2])
                    buffers[i % 2].copy_(x, non_blocking=True)
                    coming = buffers[i % 2], side.record_event()
            if ready is not None:
                user = gpu.current_stream()
                user.wait_event(ready[1])
                yield ready[0]
                used.append(user.record_event())
            ready = coming if x is not None else None
    finally:
        if at_the_end:
            side.wait_stream(user)
            for event in used[-2:]:  # who read the other buffer may be another stream
                side.wait_event(event)


@pytest.mark.parametrize("right", [wait_before_the_next_copy, two_buffers_in_turn, prefetchers.by_order])
def test_prefetchers_that_are_built_otherwise_are_right(right):
    assert n13.check_prefetch(right)


def late_with_the_second(batches, gpu):
    """Copy each batch ahead but the second."""
    batches = iter(batches)
    if first := list(islice(batches, 1)):
        yield from nothing_ahead(first, gpu)
    yield from n13.one_ahead(batches, gpu)


def nothing_ahead(batches, gpu):
    side = gpu.new_stream("copy")
    for x in batches:
        with gpu.use_stream(side):
            y = x.to("cuda", non_blocking=True)
        gpu.current_stream().wait_stream(side)
        y.record_stream(gpu.current_stream())
        yield y


@pytest.mark.parametrize(
    "depth, says",
    [
        (2, "as a plain `for` does, 12 batches may take 5 blocks"),  # as its documentation has it
        (3, "one batch ahead, not more"),
        (9, "one batch ahead, not more"),
    ],
)
def test_our_own_prefetcher_lets_the_host_run_further_ahead_than_this_exercise(depth, says):
    ours = n13.check_prefetch(lambda batches, gpu: iter(DevicePrefetcher(batches, gpu, depth)))
    assert ours.status == "wrong"
    assert says in ours.message, ours.message


def whole_epoch_first(batches, gpu):
    side = gpu.new_stream("copy")
    compute = gpu.current_stream()
    with gpu.use_stream(side):
        ready = [(x.to("cuda", non_blocking=True), side.record_event()) for x in batches]
    while ready:
        y, copied = ready.pop(0)
        compute.wait_event(copied)
        y.record_stream(compute)
        yield y
        del y


def keeping_all(batches, gpu):
    kept = []
    for y in n13.one_ahead(batches, gpu):
        kept.append(y)
        yield y


def yielding_inside(batches, gpu):
    side = gpu.new_stream("copy")
    compute = gpu.current_stream()
    ready = None
    for x in chain(batches, [None]):
        with gpu.use_stream(side):
            coming = x is not None and (x.to("cuda", non_blocking=True), side.record_event())
            if ready is not None:
                compute.wait_event(ready[1])
                ready[0].record_stream(compute)
                yield ready[0]
        ready = coming


def yielding_where_the_user_was(batches, gpu):
    """Yield inside the stream that was current: it comes back behind the yield, and the user may have left it."""
    prefetched = n13.one_ahead(batches, gpu)
    while True:
        with gpu.use_stream(gpu.current_stream()):
            batch = next(prefetched, None)
            if batch is None:
                return
            yield batch
            del batch


def using_it_behind_the_yield(batches, gpu):
    """Launch something on the batch when its user asks for the next one, perhaps in another stream."""
    for batch in n13.one_ahead(batches, gpu):
        yield batch
        batch.add_(0)
        del batch


def for_one_user(batches, gpu, waits=True):
    main = gpu.current_stream()
    yield from n13.one_ahead(
        batches,
        gpu,
        lambda stream, side, y, copied: (
            (main if waits else stream).wait_event(copied),
            y.record_stream(main),
        ),
    )


def recorded_too_late(batches, gpu):
    """Tell the allocator behind the yield: a user who leaves never lets it come so far."""
    for y in n13.one_ahead(batches, gpu, lambda stream, side, y, copied: stream.wait_event(copied)):
        yield y
        y.record_stream(gpu.current_stream())


@pytest.mark.parametrize(
    "wrong, says",
    [
        (whole_epoch_first, "batch 5 is copied before batch 0 is handed over: one batch ahead"),
        (keeping_all, "a list or variable of yours keeps memory of batches"),
        (
            prefetchers.without_a_bound,
            "12 batches may take 12 blocks of device memory. `record_stream` holds a dropped block back",
        ),
        (partial(n13.one_ahead, lead=0), "stands still until all is computed"),
        (yielding_inside, "F0 ran in copy: you yield inside"),
        (yielding_where_the_user_was, "goes on in another stream behind batch 0, F1 ran in compute: you yield"),
        (lambda batches, gpu: n13.one_ahead(list(batches), gpu), "batch 5 is asked for before batch 0"),
        (but(lambda stream, side, batch, event: batch.record_stream(stream)), "must wait for the copy"),
        (
            but(lambda stream, side, batch, event: stream.wait_event(event)),
            "the next copy took it, while the kernel may still use it",
        ),
        (
            but(lambda stream, side, batch, _: (stream.wait_stream(side), batch.record_stream(stream))),
            "waits for the copy of batch 1, too. Wait for the event behind its own copy",
        ),
        (
            but(lambda stream, _, batch, event: (event.synchronize(), batch.record_stream(stream))),
            "stands still until copy of batch 0",
        ),
        (lambda batches, gpu: islice(n13.one_ahead(batches, gpu), 5), "batch 5 is lost"),
        (nothing_ahead, "only after F0 was launched: while a user waits for F0, no copy runs."),
        (late_with_the_second, "only after F0 was launched: while a user waits for F0, no copy runs."),
        (lambda batches, gpu: iter([x.to("cuda", non_blocking=True) for x in batches]), "that copy overlaps no step"),
        (for_one_user, "Ask for `gpu.current_stream()` at each hand-over"),
        (partial(for_one_user, waits=False), "if its user goes on in another stream"),
        (recorded_too_late, "A generator that is left gets GeneratorExit at its `yield`, and a `finally` there"),
        (partial(two_buffers_in_turn, at_the_end=False), "if its user leaves the loop behind batch 1"),
        (lambda batches, gpu: list(batches), "not a tensor on the device"),
        (lambda batches, gpu: 3, "TypeError"),
        (lambda batches, gpu: reversed(list(n13.one_ahead(batches, gpu))), "in order, got 5, 4"),
        (lambda batches, gpu: n13.one_ahead(list(batches) * 2, gpu), "with 6 batches more come out than go in."),
    ],
)
def test_famous_wrong_prefetchers_are_told_what_is_wrong(wrong, says):
    verdict = n13.check_prefetch(wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_advice_on_the_users_stream_is_given_only_where_a_step_races():
    verdict = n13.check_prefetch(using_it_behind_the_yield)
    assert verdict.status == "wrong", verdict.message
    assert "add (another)" in verdict.message, verdict.message
    assert "at each hand-over" not in verdict.message, verdict.message


# ---- exercise 2


def with_the_stream_of_the_device(work, cuda):
    start = cuda.Event(enable_timing=True)
    end = cuda.Event(enable_timing=True)
    cuda.current_stream().record_event(start)
    work()
    cuda.current_stream().record_event(end)
    while not end.query():
        pass
    return start.elapsed_time(end)


def by_its_own_import(work, cuda):
    from time import perf_counter

    began = perf_counter()
    work()
    return perf_counter() - began


def warmed_up(work, cuda):
    work()
    return n13.check_device_ms.reference(work, cuda)


def of_the_model(work, cuda):
    before = cuda.busy
    work()
    return cuda.busy - before


@pytest.mark.parametrize(
    "wrong, says",
    [
        (timing.on_an_empty_device, "The device runs empty on the way"),
        (timing.with_both_marks_before, "Both marks lie on the same side of the work"),
        (timing.in_the_default_stream, "in a side stream: the device needs 6.0 ms, you say 0.04. work()"),
        (warmed_up, "work() was called 2 times"),
        (of_the_model, "'ModelCuda' object has no attribute 'busy'"),
        (by_its_own_import, "3 kernels of 2 ms behind 5 ms of other work: the device needs 6.0 ms, you say"),
        (lambda work, cuda: len([work()]), "the device needs 6.0 ms, you say 1.0"),
    ],
)
def test_a_timer_that_asks_another_clock_is_told(wrong, says):
    assert n13.check_device_ms(with_the_stream_of_the_device)
    verdict = n13.check_device_ms(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message, verdict.message
