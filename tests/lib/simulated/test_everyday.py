"""What people do with a device besides computing: save, pickle, copy, resize, look, infer, start generators anew."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from lib.simulated import Kernel
from tests.lib.simulated.common import new_stream


def test_without_a_limit_a_device_has_what_the_host_has(device):
    free, total = torch.simgpu.mem_get_info()
    assert 0 < free <= total == 64 << 20
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 32.00 TiB|Tried to allocate 32768.00 GiB"):
        torch.empty(1 << 45, dtype=torch.uint8, device="simgpu")


def test_inference_mode_computes(device):
    device(kernel=Kernel(seconds=0.001))
    outside = torch.ones(3, device="simgpu")
    with torch.inference_mode():
        x = torch.ones(3, device="simgpu") * 2
        x.add_(outside)
        outside.mul_(5)
        layer = nn.Linear(3, 2).to("simgpu")
        assert layer(x).shape == (2,)
        moved = x.to("simgpu:1")
    assert x.tolist() == moved.tolist() == [3, 3, 3]
    assert outside.tolist() == [5, 5, 5]
    assert x.is_inference()
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        x.add_(1)


MAPS = {
    "cpu": "cpu",
    "simgpu": "simgpu:0",
    "simgpu:0": "simgpu:0",
    "another device": "simgpu:0",
    "the host": "cpu",
    "a function": "cpu",
    "as it was": "simgpu:1",
}
HOW = {
    "another device": {"simgpu:1": "simgpu:0"},
    "the host": {"simgpu:1": "cpu"},
    "a function": lambda storage, location: storage.cpu(),
    "as it was": None,
}


@pytest.mark.parametrize("name", MAPS)
def test_a_file_is_loaded_where_it_is_wanted_and_views_share_again(device, name):
    file = io.BytesIO()
    x = torch.arange(6.0, device="simgpu:1")
    torch.save({"all": x, "part": x[2:4], "weight": nn.Parameter(x)}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=HOW.get(name, name))
    assert {str(y.device) for y in loaded.values()} == {MAPS[name]}
    loaded["all"][2] = 100
    assert loaded["part"].tolist() == [100, 3]
    assert loaded["weight"].requires_grad


def test_a_file_of_a_device_that_is_not_here_says_so(device):
    file = io.BytesIO()
    torch.save(torch.ones(3), file)
    file.seek(0)
    with pytest.raises(RuntimeError, match="map_location"):
        torch.load(file, map_location="simgpu:7")


def test_tensors_modules_and_generators_are_pickled_and_copied(device):
    x = torch.arange(3.0, device="simgpu:1", requires_grad=True)
    layer = nn.Linear(2, 2).to("simgpu")
    generator = torch.Generator("simgpu:1").manual_seed(3)
    torch.rand(5, device="simgpu:1", generator=generator)
    state = generator.get_state()
    for again in (copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))):
        y = again(x)
        assert (y.device, y.requires_grad, y.tolist()) == (x.device, True, [0, 1, 2])
        assert again(layer).weight.equal(layer.weight)
        twin = again(generator)
        assert (twin.device, twin.initial_seed()) == (generator.device, 3)
        assert torch.equal(twin.get_state(), state)
    twin = generator.clone_state()
    assert twin.device == generator.device
    drawn = [torch.rand(3, device="simgpu:1", generator=each).tolist() for each in (generator, twin)]
    assert drawn[0] == drawn[1]


def test_the_copies_of_a_tensor_share_memory_as_the_tensors_did_and_with_no_others(device):
    x = torch.arange(3.0, device="simgpu")
    whole, part = copy.deepcopy([x, x[1:]])
    whole[1] = 50
    assert part.tolist() == [50, 2]
    assert x.tolist() == [0, 1, 2]


def test_what_is_made_larger_keeps_its_numbers_behind_what_is_still_computed(device):
    device(kernel=Kernel(seconds=0.01))
    for _ in range(3):  # memory is used again
        x = torch.arange(128.0, device="simgpu")
        x.mul_(2)
        x.resize_(1000)
        assert x[:128].tolist() == [2.0 * k for k in range(128)]
        assert x.isnan().sum() == 1000 - 128


def test_a_storage_is_emptied_and_filled_again(device):
    before = torch.simgpu.memory_allocated()
    x = torch.arange(1000.0, device="simgpu")
    x.untyped_storage().resize_(0)  # as FSDP does
    assert torch.simgpu.memory_allocated() == before
    x.untyped_storage().resize_(4000)
    assert x.isnan().all()
    assert torch.simgpu.memory_allocated() > before


def test_the_summary_of_memory_has_the_numbers_of_the_statistics(device):
    x = torch.ones(1000, device="simgpu:1")
    summary = torch.simgpu.memory_summary(1)
    assert summary.startswith(f"simgpu:1, {64 << 20:,} bytes")
    assert f"{torch.simgpu.memory_allocated(1):,}" in summary
    assert x.sum() == 1000


def test_tensors_of_no_elements_go_everywhere(device):
    x = torch.empty(0, 3, device="simgpu", requires_grad=True)
    layer = nn.Linear(3, 2).to("simgpu")
    layer(x).sum().backward()
    assert layer.weight.grad.abs().sum() == 0
    assert x.grad.shape == x.to("simgpu:1").shape == x.cpu().shape == (0, 3)
    x.record_stream(new_stream())
    assert torch.cat([x, x]).shape == (0, 3)


ARRANGED = {
    "transposed": lambda x: x.transpose(0, 2),
    "every second": lambda x: x[:, ::2],
    "last": lambda x: x[..., 1],
    "expanded": lambda x: x[:1].expand(5, 3, 4),
    "with an offset": lambda x: x.permute(1, 0, 2)[1:],
}


@pytest.mark.parametrize("name", ARRANGED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
def test_tensors_that_are_not_contiguous_are_copied_between_all_places(device, name, dtype):
    x = torch.arange(24).reshape(2, 3, 4).to(dtype)
    expected = ARRANGED[name](x)
    first = ARRANGED[name](x.to("simgpu:0"))
    second = torch.zeros(expected.shape[::-1], dtype=dtype, device="simgpu:1").permute(*reversed(range(expected.ndim)))
    second.copy_(first, non_blocking=True)
    back = torch.zeros(*expected.shape, 2, dtype=dtype)[..., 0]
    back.copy_(second)
    assert torch.equal(back, expected)
    assert torch.equal(expected.to("simgpu:1").cpu(), expected)
    assert torch.equal(first.to(torch.complex64).cpu(), expected.to(torch.complex64))


def test_a_graph_over_three_places_brings_its_gradient_home(device):
    x = torch.ones(3, requires_grad=True)
    ((x.to("simgpu:0") * 2).to("simgpu:1") * 3).sum().backward()
    assert x.grad.tolist() == [6, 6, 6]
    assert x.grad.is_cpu


def test_functions_of_torch_func_run(device):
    x = torch.arange(3.0, device="simgpu")
    assert torch.func.grad(lambda y: (y * y).sum())(x).tolist() == [0, 2, 4]
    assert torch.func.vmap(lambda y: y * 2)(x).tolist() == [0, 2, 4]
    assert torch.func.jacrev(lambda y: y * y)(x).diagonal().tolist() == [0, 2, 4]
    assert torch.func.jvp(lambda y: y * 3, (x,), (torch.ones_like(x),))[1].tolist() == [3, 3, 3]


def test_a_default_device_holds_what_names_none(device):
    with torch.device("simgpu:1"):
        layer = nn.Linear(2, 2)
        assert torch.arange(3).device == torch.device("simgpu:1")
    assert layer.weight.device == torch.device("simgpu:1")


def test_forked_random_numbers_are_put_back(device):
    before = torch.simgpu.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="simgpu"):
        torch.rand(3, device="simgpu")
        assert not torch.equal(torch.simgpu.get_rng_state(), before)
    assert torch.equal(torch.simgpu.get_rng_state(), before)


def test_a_tensor_that_is_set_to_more_than_a_storage_holds_keeps_what_it_holds(device):
    x = torch.arange(128.0, device="simgpu")
    torch.ones(1000, device="simgpu")  # memory that is used again
    larger = torch.empty(0, device="simgpu").set_(x.untyped_storage(), 0, (1000,), (1,))
    assert larger[:128].tolist() == [float(k) for k in range(128)]


WAITS = {
    "stream": lambda y: torch.accelerator.current_stream().synchronize(),
    "event": lambda y: torch.accelerator.current_stream().record_event().synchronize(),
    "device": lambda y: torch.accelerator.synchronize(),
    "cache": lambda y: torch.accelerator.empty_cache(),
    "item": lambda y: y.sum().item(),
    "copy": lambda y: y.cpu(),
}


@pytest.mark.parametrize("way", WAITS)
def test_a_kernel_in_python_runs_while_the_caller_waits(device, way):
    with torch.library._scoped_library("tests_everyday", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", torch.empty_like, "Meta")
        y = torch.ops.tests_everyday.twice(torch.ones(3, device="simgpu"))
        WAITS[way](y)
        assert y.tolist() == [2, 2, 2]
