"""The top floor: the command line today, and what it needs to compare, measure and explain the floors below."""
