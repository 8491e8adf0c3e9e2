"""Personal versions: batches with rows of many devices, each computed with its own weights."""
