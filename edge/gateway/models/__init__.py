"""Which models there are, in which versions, and which of them answers."""
