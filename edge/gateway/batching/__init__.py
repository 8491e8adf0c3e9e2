"""Which requests are computed together, and when."""
