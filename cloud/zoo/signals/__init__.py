"""Networks over signals and spectra, one architecture a file."""
