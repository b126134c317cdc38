"""A PretendGPU sees every write, whichever way torch spells it, and no write where there is none."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.runtime.regions import region_of
from lib.streams import PretendGPU, find_races
from lib.streams.pretend_stream import PretendEvent
from lib.streams.races import HOST
from lib.streams.stand_in import in_place_of_cuda
from tests.lib.races import assert_no_race
from tests.lib.streams.prefetched import plain


def written_by(function):
    """Call a function of a 4×3 tensor on the device and its GPU; return what it writes: "x", "another" block."""
    gpu = PretendGPU()
    x = gpu.host(torch.rand(4, 3) + 0.5).to("cuda")
    before = len(gpu.operations)
    with in_place_of_cuda(gpu):  # an optimizer makes its state on "cuda"
        function(x, gpu)
    launches = [op for op in gpu.operations[before:] if op.kind == "launch"]
    return {"x" if region.block == x.block.name else "another" for op in launches for region in op.writes}


def step(optimizer):
    def optimize(x, gpu):
        x.grad = torch.ones_like(x)
        optimizer([x.requires_grad_()]).step()

    return optimize


def batch_norm(x, training):
    F.batch_norm(torch.zeros_like(x.t()), x[:, 0], x[:, 1], training=training)


WRITES = {
    "an operator in place": lambda x, gpu: x.add_(1),
    "an operator's sign": lambda x, gpu: x.__iadd__(1),
    "nn.ReLU(inplace=True)": lambda x, gpu: nn.ReLU(inplace=True)(x),
    "F.dropout in place": lambda x, gpu: F.dropout(x, 0.5, True, True),
    "nn.LeakyReLU(inplace=True)": lambda x, gpu: nn.LeakyReLU(0.1, inplace=True)(x),
    "out=": lambda x, gpu: torch.add(x, 1, out=x),
    "out= of two": lambda x, gpu: torch.max(torch.ones_like(x), 0, out=(x[0], torch.zeros_like(x[0]).long())),
    "_foreach_add_": lambda x, gpu: torch._foreach_add_([x], 1.0),
    "running statistics": lambda x, gpu: batch_norm(x, training=True),
    "an item": lambda x, gpu: x.__setitem__(0, 1.0),
    "items by a mask": lambda x, gpu: x.__setitem__(x > 0, 1.0),
    "items by indices": lambda x, gpu: x.index_copy_(0, torch.tensor([1]), torch.ones_like(x[:1])),
    "copy_": lambda x, gpu: x.copy_(torch.ones_like(x)),
    "copy_ from the host": lambda x, gpu: x.copy_(torch.ones(4, 3)),
    ".data": lambda x, gpu: x.data.clamp_(0, 1),
    "nn.init": lambda x, gpu: nn.init.ones_(x),
    "through a view": lambda x, gpu: x.t()[1:].zero_(),
    "through an alias": lambda x, gpu: x.detach().zero_(),
    "a fused optimizer": step(lambda p: torch.optim.Adam(p, fused=True)),
    "an optimizer over lists": step(lambda p: torch.optim.SGD(p, foreach=True)),
    "an optimizer that loops": step(lambda p: torch.optim.SGD(p, lr=0.1)),
    "a clipped gradient": lambda x, gpu: torch._foreach_mul_([x], torch.ones_like(x[0, 0])),
    "random numbers": lambda x, gpu: x.normal_(),
    "in inference mode": torch.inference_mode()(lambda x, gpu: nn.ReLU(inplace=True)(x)),
}


@pytest.mark.parametrize("way", WRITES)
def test_every_way_to_write_is_noted(way):
    assert "x" in written_by(WRITES[way])


NO_WRITES = {
    "requires_grad_": lambda x, gpu: x.requires_grad_(),
    "views": lambda x, gpu: x[1:].t().view(-1, 1) if x[1:].t().is_contiguous() else x.t()[0].expand(2, 4),
    "views in place": lambda x, gpu: x.detach().t_().unsqueeze_(0),
    "empty memory": lambda x, gpu: torch.empty_like(x),
    "record_stream": lambda x, gpu: x.record_stream(gpu.new_stream()),
    "a move to where it is": lambda x, gpu: x.to("cuda").cuda(),
}


@pytest.mark.parametrize("way", NO_WRITES)
def test_where_nothing_is_written_nothing_is_noted(way):
    assert written_by(NO_WRITES[way]) == set()


def test_what_is_only_read_is_not_written():
    assert written_by(lambda x, gpu: x * 2) == {"another"}
    assert written_by(lambda x, gpu: x.item() if x.numel() == 1 else x.sum().item()) == {"another"}
    assert "x" not in written_by(lambda x, gpu: batch_norm(x, training=False))
    assert written_by(lambda x, gpu: torch.add(x, 1, out=torch.empty_like(x))) == {"another"}


def test_torch_names_each_operator_that_writes_statistics_without_saying_so():
    """If a version of torch brings another one, it must be known here."""
    from lib.streams.pretend_tensor import _WRITES_UNSAID

    found = set()
    for schema in torch._C._jit_get_all_schemas():
        if not any(a.name == "running_mean" and a.alias_info is None for a in schema.arguments):
            continue
        whole_name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        if not torch._C._dispatch_has_kernel_for_dispatch_key(whole_name, "CompositeImplicitAutograd"):
            found.add(schema.name.removeprefix("aten::"))
    only_read = {name for name in found if "backward" in name or "functional" in name or "no_" in name}
    assert found - only_read - _WRITES_UNSAID == set()


def test_no_operator_changes_bytes_of_which_it_said_nothing():
    """What schemas say, held against what happens to the memory."""
    x = torch.rand(4, 3) + 0.5
    for way, function in {**WRITES, **NO_WRITES}.items():
        gpu = PretendGPU()
        on_device = gpu.host(x.clone()).to("cuda")
        before = len(gpu.operations)
        kept = plain(on_device).clone()
        with in_place_of_cuda(gpu):
            function(on_device, gpu)
        changed = not torch.equal(kept, plain(on_device))
        noted = any(region.meets(on_device.region) for op in gpu.operations[before:] for region in op.writes)
        assert noted or not changed, way


def test_backward_is_seen_too():
    gpu = PretendGPU()
    x = gpu.host(torch.ones(3)).to("cuda").requires_grad_()
    y = (x * x).sum()
    before = len(gpu.operations)
    y.backward()
    assert plain(x.grad).tolist() == [2.0] * 3
    launches = [op.label for op in gpu.operations[before:] if op.kind == "launch"]
    assert launches == ["ones_like", "mul", "mul", "add"]


def test_a_gradient_goes_back_over_the_copy():
    gpu = PretendGPU()
    x = gpu.host(torch.ones(3), "x").requires_grad_()
    x.to("cuda", non_blocking=True).square().sum().to("cpu").backward()
    assert plain(x.grad).tolist() == [2.0] * 3
    assert x.grad.is_cpu
    launches = [op for op in gpu.operations if op.kind == "launch"]
    copies = [(op.reads[0].block, op.writes[0].block) for op in launches if op.label.startswith("copy of")]
    assert len(copies) == 4, "there and back, in forward and in backward"
    assert_no_race(gpu.operations)


def test_columns_rows_and_interleaved_views_race_only_where_they_overlap():
    def races(first, second):
        gpu = PretendGPU()
        x = gpu.host(torch.zeros(6, 6)).to("cuda")
        with gpu.use_stream(gpu.new_stream()):
            first(x).zero_()
        second(x).fill_(1)
        return len(find_races(gpu.operations))

    columns = (lambda x: x[:, 0], lambda x: x[:, 1])
    assert races(*columns) == 0
    assert races(lambda x: x.view(-1)[::2], lambda x: x.view(-1)[1::2]) == 0
    assert races(lambda x: x[:3, :3], lambda x: x[:3, 3:]) == 0
    assert races(lambda x: x[:4, :4], lambda x: x[3:, 3:]) == 1
    assert races(lambda x: x[:, 0], lambda x: x[5]) == 1
    assert races(lambda x: x.view(-1)[::2], lambda x: x.view(-1)[::3]) == 1


def test_of_several_freed_blocks_the_one_made_first_is_given_away_first():
    gpu = PretendGPU()
    x = gpu.host(torch.zeros(4))
    copies = [x.to("cuda") for _ in range(30)]  # A to Z, AA to AD
    del copies[26:], copies[1], copies[0]
    again = [x.to("cuda") for _ in range(3)]
    assert [y.block.name for y in again] == ["A", "B", "AA"]


@pytest.mark.parametrize(
    ("freed", "wanted", "again"),
    [
        (3, 5, True),
        (5, 3, True),
        (1, 128, True),
        (128, 129, False),
        (129, 256, True),
        (256, 128, False),
    ],
)
def test_a_freed_block_serves_every_size_that_rounds_up_to_as_many_times_512_bytes(freed, wanted, again):
    """As CUDA's allocator gives memory away: that a tensor is of another size saves nobody from a race."""
    gpu = PretendGPU()
    block = gpu.host(torch.zeros(freed)).to("cuda").block.name
    assert (gpu.host(torch.zeros(wanted)).to("cuda").block.name == block) == again


def test_what_a_span_launches_is_one_launch_and_outside_of_one_each_operator_is_its_own():
    gpu = PretendGPU()
    x = gpu.host(torch.ones(3)).to("cuda")
    before = len(gpu.operations)
    (x + 1) * 2
    with gpu.span(gpu.current_stream(), "compute", "F0"):
        (x + 1) * 2
    (x + 1) * 2
    labels = [op.label for op in gpu.operations[before:] if op.kind == "launch"]
    assert labels == ["add", "mul", "F0", "add", "mul"]


def test_what_torch_changes_in_place_is_returned_and_has_its_new_layout():
    gpu = PretendGPU()
    x = gpu.host(torch.arange(6.0).reshape(2, 3)).to("cuda")
    assert x.t_() is x
    assert x.shape == (3, 2)
    assert x.copy_(torch.ones(3, 2)) is x
    assert torch.ops.aten.copy_(x, torch.ones(3, 2)) is x
    assert plain(x).tolist() == [[1.0] * 2] * 3


def test_the_host_pins_and_what_it_pins_is_another_tensor():
    gpu = PretendGPU()
    x = gpu.host(torch.ones(3), pinned=False)
    pinned = x.pin_memory()
    assert (x.is_pinned(), pinned.is_pinned()) == (False, True)
    (op,) = gpu.operations
    assert (op.lane, op.label, op.reads, op.writes) == (HOST, "pin", (x.region,), (pinned.region,))
    assert plain(pinned).tolist() == [1.0] * 3
    made = [x.new_empty(2, pin_memory=True), torch.full_like(x, 2, pin_memory=True), torch.zeros_like(x)]
    assert [y.is_pinned() for y in made] == [True, True, False]


def test_two_streams_of_one_name_are_two():
    gpu = PretendGPU()
    first = gpu.new_stream("side")
    second = gpu.new_stream("side")
    x = gpu.host(torch.zeros(3)).to("cuda")
    for stream in (first, second):
        with gpu.use_stream(stream):
            x.add_(1)
    assert [stream.name for stream in (first, second)] == ["side", "side 2"]
    assert len(find_races(gpu.operations)) == 1


def test_a_stream_knows_its_device_and_tensors_move_between_devices():
    gpu = PretendGPU(count=2)
    side = gpu.new_stream("side", 1)
    assert [str(stream.device) for stream in (gpu.current_stream(), gpu.current_stream(1), side)] == [
        "cuda:0",
        "cuda:1",
        "cuda:1",
    ]
    x = gpu.host(torch.ones(3)).to("cuda:0", non_blocking=True)
    y = x.to("cuda:1", non_blocking=True)
    z = y.to(x)
    assert [str(t.device) for t in (x, y, z)] == ["cuda:0", "cuda:1", "cuda:0"]
    (y + 1).cpu()
    assert_no_race(gpu.operations)
    with pytest.raises(RuntimeError, match="cuda:0 and cuda:1"):
        x + y
    with pytest.raises(RuntimeError, match=r"there is no cuda:2: PretendGPU\(count=2\)"):
        x.to("cuda:2")
    with pytest.raises(ValueError, match="not 'meta'"):
        x.to("meta")


def test_a_copy_between_devices_waits_for_both_and_no_longer():
    gpu = PretendGPU(count=2)
    x = gpu.host(torch.ones(3)).to("cuda:0", non_blocking=True)
    side = gpu.new_stream("side", 1)
    y = x.to("cuda:1")
    with gpu.use_stream(side):
        y.add_(1)  # nothing lets side wait for the copy, whose target's stream was another one
    assert [(race.earlier.lane, race.later.lane) for race in find_races(gpu.operations)] == [
        ("compute", "side of cuda:1")
    ]


def test_an_event_says_what_the_host_has_heard_of_it_and_is_recorded_again():
    gpu = PretendGPU()
    x = gpu.host(torch.ones(3)).to("cuda", non_blocking=True)
    stream = gpu.current_stream()
    event = PretendEvent(gpu)
    assert event.query(), "never recorded: there is nothing to wait for"
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()
    x.add_(1)
    event.record(stream)
    assert not event.query()
    assert not stream.query()
    stream.synchronize()
    assert event.query()
    assert stream.query()


@pytest.mark.parametrize("asked", ["event", "stream"])
def test_a_host_that_only_asks_has_begun_to_wait_and_one_that_goes_on_launching_has_not(asked):
    gpu = PretendGPU()
    stream = gpu.current_stream()
    x = gpu.empty_like(torch.ones(3)).fill_(1)
    what = stream.record_event() if asked == "event" else stream
    for _ in range(3000):
        assert not what.query()
        x.add_(1)
    if asked == "event":
        event = stream.record_event()
        what = event
    asks = 1
    while not what.query():
        asks += 1
    assert asks < 30, "it may sleep for a millisecond in between"
    assert sum(op.kind == "synchronize" for op in gpu.operations) == 1


def test_the_host_waits_for_all_streams_of_a_device_in_one_call():
    gpu = PretendGPU()
    side = gpu.new_stream()
    with gpu.use_stream(side):
        y = gpu.host(torch.ones(3), "batch").to("cuda", non_blocking=True)
    gpu.synchronize()
    y.add_(1)
    assert not find_races(gpu.operations)
    assert {op.label for op in gpu.operations if op.kind == "synchronize"} == {"all that was launched"}


def test_operators_whose_result_the_host_must_know_are_waited_for():
    def waited(function):
        gpu = PretendGPU()
        x = gpu.host(torch.ones(3)).to("cuda", non_blocking=True)
        function(x)
        return gpu.current_stream().query()

    for function in (
        lambda x: x.sum().item(),
        lambda x: bool(x.sum()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: x.tolist(),
        lambda x: repr(x),
        lambda x: x.cpu(),
    ):
        assert waited(function)
    for function in (
        lambda x: x.sum(),
        lambda x: x[:1],
        lambda x: x[torch.tensor([0])],
        lambda x: x.__setitem__(x > 0, 2.0),
        lambda x: x.to("cpu", non_blocking=True),
    ):
        assert not waited(function)


def test_a_region_is_that_of_its_view():
    x = torch.zeros(4, 6)
    assert region_of(x, "A")[1:] == (0, 96, ())
    assert region_of(x[1:3], "A")[1:] == (24, 72, ())
    assert region_of(x[:, 1], "A")[1:] == (4, 80, ((4, 24),))
    assert region_of(x[::2, :2], "A")[1:] == (0, 56, ((2, 48),))
    assert region_of(x[:, :0], "A")[1:] == (0, 0, ())


@pytest.mark.parametrize(("seconds", "error"), [("1", TypeError), (-1, ValueError), (float("inf"), ValueError)])
def test_it_sleeps_for_no_time_that_a_device_refuses(seconds, error):
    gpu = PretendGPU()
    with pytest.raises(error, match="seconds must be"):
        gpu.sleep(seconds)
    assert not gpu.operations


@pytest.mark.parametrize("given", [None, 3, "wait_event"])
def test_forgets_that_is_no_list_is_refused_with_the_way_out(given):
    with pytest.raises(TypeError, match=r"forgets must be a list, such as \['wait_event'\], not " + repr(given)):
        PretendGPU(forgets=given)


def test_forgets_names_what_it_knows():
    with pytest.raises(ValueError, match=r"record_stream, wait_event, wait_stream, not \['wait'\]"):
        PretendGPU(forgets=["wait"])


def test_that_a_stream_is_kept_busy_is_noted_where_it_sleeps():
    gpu = PretendGPU()
    with gpu.use_stream(gpu.new_stream("side")):
        gpu.sleep(1.0)
    (op,) = gpu.operations
    assert (op.kind, op.lane, op.label, op.reads, op.writes) == ("launch", "side", "sleep", (), ())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torchs_own_operator_that_moves_and_casts_is_a_copy_and_a_cast_where_it_comes_to(dtype):
    """x.to(device) never comes to it: that is PretendTensor's own. torch's operator is called by name, as in C++."""
    gpu = PretendGPU()
    x = gpu.host(torch.tensor([1.5, 2.5]))
    moved = torch.ops.aten._to_copy(x, device="cuda", dtype=dtype)
    assert (str(moved.device), moved.dtype, moved.plain.tolist()) == ("cuda:0", dtype, [1.5, 2.5])
    launched = [op.label for op in gpu.operations if op.kind == "launch"]
    assert launched == ["copy of input", "to"][: 1 if dtype == x.dtype else 2]
    assert find_races(gpu.operations) == []


def test_a_stream_is_in_use_within_a_with_each_on_its_own_device_and_what_was_in_use_comes_back():
    gpu = PretendGPU(count=2)
    here = gpu.new_stream("here", 0)
    there = gpu.new_stream("there", 1)
    outside = [gpu.current_stream(index) for index in range(2)]
    with here, there as inside:
        assert inside is there
        assert [gpu.current_stream(index) for index in range(2)] == [here, there]
        assert gpu.current_device == 1
        with here:  # once more, inside of itself
            assert gpu.current_device == 0
        assert [gpu.current_stream(index) for index in range(2)] == [here, there]
    assert [gpu.current_stream(index) for index in range(2)] == outside
    with pytest.raises(KeyError, match="of the body"), there:
        raise KeyError("of the body")
    assert [gpu.current_stream(index) for index in range(2)] == outside
    assert gpu.current_device == 0


def test_the_gpu_in_a_devices_place_is_told_what_to_write():
    gpu = PretendGPU()
    x = gpu.host(torch.ones(2))
    with pytest.raises(TypeError, match=r"write x\.to\(gpu\.device\)"):
        x.to(gpu)
    assert x.to(gpu.device).is_cuda


def test_memory_of_a_stream_that_only_waited_comes_back_when_what_it_waited_for_is_known_to_be_done():
    """As with CUDA: dropped memory goes back when an event behind all that its users wait for is reached."""
    gpu = PretendGPU()
    work = gpu.new_stream("work")
    wait = gpu.new_stream("wait")
    host = gpu.host(torch.ones(4))
    x = host.to("cuda", non_blocking=True)
    work.wait_stream(gpu.current_stream())
    with gpu.use_stream(work):
        y = x * 2
    wait.wait_stream(work)
    x.record_stream(wait)
    name = x.block.name
    del x
    second = host.to("cuda", non_blocking=True)
    assert second.block.name != name, "the kernel in stream work may still read it"
    assert_no_race(gpu.operations)
    wait.synchronize()
    assert host.to("cuda", non_blocking=True).block.name == name
    del y
