"""Images made ready for a model on the CPU or on the GPU: the seconds, and the bytes that travel. Notebook 13.

`python -m lib.recordings preprocess`, on a GPU, writes notebooks/recorded/preprocess.json.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lib.measure import measure
from lib.recordings import measured_or_recorded, need_gpu

IMAGES, SIDE = 128, 224


def images(count: int = IMAGES) -> Tensor:
    """Return random images as a decoder gives them: bytes, (count, height, width, 3)."""
    shape, generator = (count, SIDE, SIDE, 3), torch.Generator().manual_seed(0)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def make_ready(x: Tensor) -> Tensor:
    """Return float32 in (count, 3, height, width) with mean 0 and standard deviation 1 or so, wherever x is."""
    return ((x.permute(0, 3, 1, 2).to(torch.float32) - 127.5) / 73.6).contiguous()


def cpu_part(count: int = IMAGES) -> dict[str, Any]:
    """Measure here what needs no GPU: {"images", "cpu" seconds, "byte_bytes", "float_bytes"}."""
    x = images(count)
    cpu = min(measure(lambda: make_ready(x), repeats=3).samples)
    return {"images": count, "cpu": cpu, "byte_bytes": x.nbytes, "float_bytes": make_ready(x).nbytes}


def measure_preprocess() -> dict[str, Any]:
    """Return cpu_part, and seconds "copy_bytes", "copy_floats" (pinned), "gpu"; RuntimeError without a GPU."""
    need_gpu("measure_preprocess")
    x, found = images(), cpu_part()
    pinned, ready = x.pin_memory(), make_ready(x).pin_memory()
    on_device = x.cuda()
    works = {
        "copy_bytes": lambda: pinned.to("cuda", non_blocking=True),
        "copy_floats": lambda: ready.to("cuda", non_blocking=True),
        "gpu": lambda: make_ready(on_device),
    }
    return {**found, **{name: min(measure(work, device="cuda").samples) for name, work in works.items()}}


def find_preprocess() -> tuple[dict[str, Any] | None, str]:
    """Return the measurement or the recording, and which it is."""
    return measured_or_recorded("preprocess", measure_preprocess)
