"""The hub of a fleet: repository, deltas, rollouts, check-in."""
