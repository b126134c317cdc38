"""CUDA's documented rules: the table that a PretendGPU is held to as well, on a GPU."""

import pytest

from tests.gpu.common import KIND, SIMULATED, gpu, sleep
from tests.lib.simulated.rules.all_rules import RULES
from tests.lib.simulated.rules.table import OfTorch

KEPT = [rule for rule in RULES if SIMULATED or not rule.unsafe]


@pytest.mark.parametrize("rule", KEPT, ids=lambda rule: rule.name)
def test_a_gpu_keeps(rule):
    if gpu.device_count() < rule.devices:
        pytest.skip(f"needs {rule.devices} GPUs")
    assert OfTorch(KIND, sleep).gives(rule) == rule.gives, rule.says
