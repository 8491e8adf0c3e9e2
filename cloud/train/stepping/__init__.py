"""One training step: losses, precision, frozen parameters, checks for finite values."""
