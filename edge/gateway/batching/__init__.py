"""Dynamic batching: which requests are computed together, and when."""
