"""Scripts of other servers, each run by the interpreter of its own environment."""
