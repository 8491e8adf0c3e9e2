"""Plans beside one another: the models, the compilers, what was predicted and what was compiled."""
