"""The server side: rounds, replies, checkpoints and the store of personal models."""
