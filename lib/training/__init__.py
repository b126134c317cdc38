"""Training on real ranks: starting them from a notebook, the model that they train, its state, what the logs say."""
