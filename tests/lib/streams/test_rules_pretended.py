"""A PretendGPU keeps the same rules: there is a race exactly where a real device may read something else."""

import pytest

from tests.lib.simulated.rules.all_rules import PARTS, RULES
from tests.lib.simulated.rules.table import Pretended


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_pretend_gpu_keeps(rule):
    assert Pretended().gives(rule) == rule.gives, rule.says


def test_there_are_rules_of_each_kind():
    assert len({rule.name for rule in RULES}) == len(RULES) >= 80
    assert {rule.program.__module__ for rule in RULES} == {part.__name__ for part in PARTS}
    for part in PARTS:
        outcomes = {rule.gives for rule in RULES if rule.program.__module__ == part.__name__}
        assert len(outcomes) >= 2, "what may go wrong, and what may not"
