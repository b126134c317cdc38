"""A toy, as a twelfth maker: pytest -p tests.lib.schedules.further_maker runs any test with it among MAKERS."""

from lib.schedules import Schedule, slotted
from lib.schedules.makers import MAKERS, Maker, in_rounds, round_size, sizes


def there_and_back(micro_batches, partitions, stages_per_rank):
    """All forwards, depth first; then every rank goes back exactly as it came."""
    m, n, v = sizes(micro_batches, partitions, stages_per_rank)
    orders = []
    for rank in range(n):
        stages = range(rank, n * v, n)
        planned = in_rounds("F", stages, m, round_size(m, n))
        forwards = [action for action in planned if action.micro_batch < m]
        backwards = [action._replace(op="B") for action in reversed(forwards)]
        orders.append(forwards + backwards)
    return slotted(Schedule("there_and_back", orders))


TOY = Maker("there and back", there_and_back, looped=True, torch_class="ScheduleThereAndBack")


def pytest_configure():
    """Add the toy before pytest asks any test for its makers."""
    MAKERS[TOY.name] = TOY
