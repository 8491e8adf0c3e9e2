"""The hub of a fleet: the signed repository of its applications, differences between versions, rollouts, check-ins."""
