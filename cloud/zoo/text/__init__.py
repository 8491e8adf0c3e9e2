"""Networks over token ids, one architecture a file."""
