"""torch.simgpu: this file becomes what torch.cuda is to CUDA, as far as torch and this course ask for it.

torch finds it by name (torch.get_device_module); nearly all of it hands on to torch.accelerator. A device may be given
as None (the current one), a number, "simgpu:1" or a torch.device.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import accelerator

from lib.arguments import seconds_to_sleep

DeviceLike: TypeAlias = torch.device | str | int | None

# ---- devices


def need_start() -> None:
    """Raise RuntimeError where no device was started."""
    if not default_generators:
        raise RuntimeError("no simulated device was started here: call lib.simulated.start() first")


_initialized = True
"""torch.utils.checkpoint asks for it before it keeps the states of the generators."""


def index_of(place: DeviceLike = None) -> int:
    """Return the number of a device."""
    if isinstance(place, int):
        return place
    index = None if place is None else torch.device(place).index
    return accelerator.current_device_index() if index is None else index


class device:
    """Make a device the current one within a `with`, as torch.cuda.device does."""

    def __init__(self, device: DeviceLike) -> None:
        self.index = index_of(device)
        self.before = self.index

    def __enter__(self) -> None:
        self.before = accelerator.current_device_index()
        accelerator.set_device_index(self.index)

    def __exit__(self, *_: object) -> None:
        accelerator.set_device_index(self.before)


def is_available() -> bool:
    """Return True: this module exists where devices were started."""
    return True


is_initialized = is_available
is_bf16_supported = is_available


def init() -> None:
    """Do nothing: the devices have been started."""


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return bool(torch.ops.simgpu.forked())


def device_count() -> int:
    """Return how many were started."""
    return len(default_generators)  # torch.accelerator.device_count asks here


def current_device() -> int:
    """Return the number of the current device of this thread."""
    return accelerator.current_device_index()


def set_device(device: DeviceLike) -> None:
    """Make a device the current one of this thread."""
    accelerator.set_device_index(index_of(device))


def get_device_name(device: DeviceLike = None) -> str:
    """Return a name that no GPU has."""
    return "simulated GPU"


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that autocast may be asked for."""
    return [torch.float16, torch.bfloat16]


# ---- streams and events

Stream = torch.Stream


def Event(enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
    """Make an event of this kind of device, as torch.cuda.Event does.

    blocking: without effect, a host always sleeps while it waits. interprocess: has to be False.

    Raises:
        ValueError: interprocess is asked for; a simulated device belongs to one process.
    """
    if interprocess:
        raise ValueError("interprocess=True: a simulated device belongs to one process; leave it out")
    return torch.Event("simgpu", enable_timing=enable_timing, blocking=blocking)


class stream:
    """Make a stream the current one, and its device, within a `with`, as torch.cuda.stream does; it nests."""

    def __init__(self, stream: torch.Stream) -> None:
        self.stream = stream
        self.of_its_device = stream
        self.device = stream.device_index

    def __enter__(self) -> None:
        self.device = accelerator.current_device_index()
        self.of_its_device = accelerator.current_stream(self.stream.device_index)
        accelerator.set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        accelerator.set_stream(self.of_its_device)
        accelerator.set_device_index(self.device)


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """Return this thread's stream of a device."""
    return accelerator.current_stream(index_of(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """Return the stream that a device starts with: number 0."""
    here = current_stream(device)
    return torch.Stream(stream_id=0, device_index=here.device_index, device_type=here.device_type)


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all streams of a device; raises RuntimeError for a kernel that has failed there."""
    accelerator.synchronize(index_of(device))


# ---- random numbers

default_generators: tuple[torch.Generator, ...] = ()
"""One a device; `start` puts them here."""


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """Return the state of a device's generator."""
    return default_generators[index_of(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Set the state of a device's generator."""
    default_generators[index_of(device)].set_state(new_state)


def initial_seed() -> int:
    """Return the seed of the current device's generator."""
    return default_generators[index_of()].initial_seed()


def manual_seed(seed: int) -> None:
    """Seed the generator of the current device."""
    default_generators[index_of()].manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    for generator in default_generators:
        generator.manual_seed(seed)


# ---- memory, in bytes

OutOfMemoryError = torch.OutOfMemoryError
empty_cache = accelerator.empty_cache


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Return the allocator's statistics, under the names that CUDA's have."""
    return dict(accelerator.memory_stats(index_of(device)))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Let the peaks begin at what is held now."""
    accelerator.reset_peak_memory_stats(index_of(device))


def memory_allocated(device: DeviceLike = None) -> int:
    """Return the bytes that tensors hold."""
    return int(memory_stats(device)["allocated_bytes.all.current"])


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Return the most bytes that tensors held."""
    return int(memory_stats(device)["allocated_bytes.all.peak"])


def memory_reserved(device: DeviceLike = None) -> int:
    """Return the bytes that tensors and the cache hold."""
    return int(memory_stats(device)["reserved_bytes.all.current"])


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Return the most bytes that tensors and the cache held."""
    return int(memory_stats(device)["reserved_bytes.all.peak"])


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Return free and total bytes of a device."""
    free, total = accelerator.get_memory_info(index_of(device))
    return int(free), int(total)


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Return a table of what tensors and the cache hold, now and at the peak, and of what the device has."""
    stats = memory_stats(device)
    _, total = mem_get_info(device)
    rows = [f"simgpu:{index_of(device)}, {total:,} bytes{'now':>12}{'peak':>16}"]
    for name, key in (("allocated", "allocated_bytes"), ("active", "active_bytes"), ("reserved", "reserved_bytes")):
        rows.append(f"{name:<24}{stats[f'{key}.all.current']:>16,}{stats[f'{key}.all.peak']:>16,}")
    rows.append(
        f"out of memory {stats['num_ooms']} times; the cache given back for room {stats['num_alloc_retries']} times"
    )
    return "\n".join(rows)


# ---- torch.compile


def __getattr__(name: str) -> Any:
    # torch's inductor asks for this before it writes kernels; without an answer it fails with KeyError('simgpu').
    if name == "Scheduling":
        raise CompileError(
            "torch.compile writes kernels for a CPU or a real GPU: on a simulated one say backend='eager', or "
            "backend='aot_eager', which run torch's own kernels"
        )
    raise AttributeError(f"torch.simgpu has no {name}")


class CompileError(Exception):
    """What torch.compile was asked for has no compiler: no RuntimeError, since torch would not pass that on."""


# ---- what only a simulated device has


def sleep(seconds: float) -> None:
    """Keep the current stream busy, as torch.cuda._sleep does; the caller goes on at once.

    Raises TypeError for what is no number, ValueError for seconds below 0 or beyond a day, RuntimeError before start.
    """
    checked = seconds_to_sleep(seconds)
    need_start()
    torch.ops.simgpu.sleep(checked)
