"""What Python runs first in every process of `make test` (tools/test.py says where), so that it starts sooner.

The suite starts hundreds of processes that import torch: kernels, ranks, workers, scripts. Python looks for cycles
among their modules again and again, which is a sixth of importing torch and a third of importing its compiler, as the
first optimizer of a process does. Cycles are still collected, only not after every 700 new objects.

Whoever reads a notebook imports jsonschema, which for addresses with foreign letters builds the parser of a grammar: a
second, in every process of pytest. No schema of a notebook has such addresses, and jsonschema does without.
"""

import gc
import sys
from typing import Any

gc.set_threshold(50_000, 20, 100)
modules: dict[str, Any] = sys.modules
modules.setdefault("rfc3987_syntax", None)  # as if it were not installed
