"""Plans as pictures."""
