"""CUDA's documented rules where copies are slow and where calls are forgotten; else see tests/gpu/test_rules_gpu.py."""

import pytest

from lib.simulated import Link, sleep
from tests.lib.simulated.rules import copies
from tests.lib.simulated.rules.all_rules import RULES
from tests.lib.simulated.rules.table import RIGHT, WRONG, OfTorch, Pretended


def of_part(part, but):
    return [rule for rule in RULES if rule.program.__module__ == part.__name__ and rule.name not in but]


READS = [rule for rule in RULES if rule.gives in (RIGHT, WRONG)]


#: Here a kernel is late, or the copy costs nothing.
OF_KERNELS = {"pin_memory_waits_for_the_device", "the_host_waits_for_a_copy_on_the_device"}
OF_KERNELS |= {"cpu_waits_for_another_stream", "a_copy_between_devices_waits_for_who_wrote_its_source"}


@pytest.mark.parametrize("rule", of_part(copies, but=OF_KERNELS), ids=lambda rule: rule.name)
def test_it_keeps_those_about_copies_when_the_copies_themselves_take_their_time(rule, device):
    slow = Link(latency=0.1)
    device(host_link=slow, peer_link=slow)
    assert OfTorch("simgpu", lambda seconds: None).gives(rule) == rule.gives, rule.says


@pytest.mark.parametrize("forgets", [("wait_event", "wait_stream"), ("record_stream",)], ids=["waits", "record_stream"])
def test_where_calls_are_forgotten_a_simulated_device_reads_wrong_numbers_where_a_pretend_gpu_finds_races(
    forgets, device
):
    pretended = {rule.name: Pretended(forgets).gives(rule) for rule in READS}
    spoilt = [rule for rule in READS if pretended[rule.name] != rule.gives]
    assert len(spoilt) >= (3 if "record_stream" in forgets else 10)
    device(forgets=forgets)
    simulated = {rule.name: OfTorch("simgpu", sleep).gives(rule, pretended[rule.name]) for rule in READS}
    assert simulated == pretended
