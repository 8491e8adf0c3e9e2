"""[[data.augment]] of a run file: its keys, and the nodes of a pipeline that they become."""
