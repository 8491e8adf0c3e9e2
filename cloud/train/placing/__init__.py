"""Where a training step runs: devices, sharding, plans."""
