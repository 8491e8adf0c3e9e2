"""The search for settings of a run: what may vary, which values are tried next, trials in parallel, in one study."""
