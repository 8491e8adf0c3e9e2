"""Networks over graphs and pairs, one architecture a file."""
