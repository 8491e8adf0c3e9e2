"""Two versions of the runtime, turn by turn on the same bundles."""
