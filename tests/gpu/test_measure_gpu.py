"""On a GPU: its events time the device's work, not its launch, and the peak is that of the body alone."""

import os

import pytest
import torch

from lib.machine import machine_card
from lib.measure import compare, measure
from lib.memory import device_peak
from tests.gpu.common import GPU, KIND, sized

LARGE = sized(cuda=8192, simulated=1024)


def product(size: int) -> torch.Tensor:
    generator = torch.Generator(KIND).manual_seed(0)
    return torch.randn(size, size, device=GPU, generator=generator)


def test_events_time_the_work_not_its_launch_and_not_what_was_launched_before() -> None:
    small = product(64)
    large = product(LARGE)
    timings = compare({"small": lambda: small @ small, "large": lambda: large @ large}, repeats=5, device=GPU)
    assert timings["large"].clock == f"{KIND} events"
    assert timings.ratio("large", "small") > 2, "both launches cost the CPU the same"
    large = product(LARGE)
    work = measure(lambda: large @ large, device=GPU)
    for _ in range(20):
        large @ large
    nothing = measure(lambda: None, warmup=0, repeats=1, device=GPU)
    assert nothing.median < work.median


def test_the_peak_is_that_of_the_body_also_of_one_that_raises() -> None:
    kept = torch.zeros(1_000_000, device=GPU)  # 4 MB that were there before
    with device_peak(GPU) as peak:
        torch.zeros(25_000_000, device=GPU)  # 100 MB, gone at once
    assert peak.allocated is not None
    assert peak.extra is not None
    assert 100_000_000 <= peak.extra < 110_000_000
    assert peak.allocated >= peak.extra + kept.nbytes

    def fails(elements: int) -> None:
        torch.zeros(elements, device=GPU)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), device_peak() as peak:
        fails(25_000_000)
    assert peak.extra is not None
    assert peak.extra >= 100_000_000


@pytest.mark.cuda_only(reason="the card names the GPU, its memory and its driver")
def test_the_card_names_the_gpu() -> None:
    card = machine_card()
    assert card.gpu == card.device == torch.cuda.get_device_name()
    assert card.cuda == torch.version.cuda
    assert f"gpu    {card.gpu}" in str(card)
    assert card.driver is None or card.driver[0].isdigit()
    assert os.sep + "proc" not in str(card)
