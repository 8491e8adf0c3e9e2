"""On-device learning: state and its checkpoints, and batches in which every row has its own weights."""
