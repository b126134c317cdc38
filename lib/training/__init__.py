"""Training on real ranks: starting them from a notebook, which of them failed first, the state that outlives them.

The small model that the notebooks' ranks train is none of lib's: notebooks/support/training.py.
"""

from lib.training.launch import RankError, RankTimeoutError, Run, torchrun
from lib.training.state import load_state, save_state

__all__ = ["RankError", "RankTimeoutError", "Run", "load_state", "save_state", "torchrun"]
