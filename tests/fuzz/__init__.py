"""Programs that try to break things. `python -m tests.fuzz.bundles --help`."""
