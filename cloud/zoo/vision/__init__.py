"""Networks over images, one architecture a file."""
