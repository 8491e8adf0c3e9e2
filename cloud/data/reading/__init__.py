"""Reading a pipeline: sources, views by number, streams in order, workers."""
