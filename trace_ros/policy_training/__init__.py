"""Walking policies by reinforcement learning: for a robot that has none, and for walks that an estimator never saw."""
