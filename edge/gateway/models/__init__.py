"""The models and their versions: loading, configuration, routing."""
