"""What Python runs first in every process of `make test` (tools/test.py says where): fewer looks for cycles.

The suite starts hundreds of processes that import torch: kernels, ranks, workers, scripts. Python looks for cycles
among their modules again and again, which is a sixth of importing torch and a third of importing its compiler, as the
first optimizer of a process does. Cycles are still collected, only not after every 700 new objects.
"""

import gc

gc.set_threshold(50_000, 20, 100)
