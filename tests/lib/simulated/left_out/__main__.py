"""python -m tests.lib.simulated.left_out [PART OF A NAME]: who sees that a wait of lib is left out?"""

import sys

from tests.lib.simulated.left_out.judge import main

main(*sys.argv[1:])
