"""Training on real ranks: starting them from a notebook, the model that they train, its state, what the logs say."""

from lib.training.launch import RankError, RankTimeoutError, Run, torchrun
from lib.training.state import load_state, save_state

__all__ = ["RankError", "RankTimeoutError", "Run", "load_state", "save_state", "torchrun"]
