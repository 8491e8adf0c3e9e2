"""Two versions of the runtime, in alternating turns on the same bundles."""
