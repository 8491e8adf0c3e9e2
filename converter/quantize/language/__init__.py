"""Rounding of a language model's matrices by a text of the user's: GPTQ, and mixes of precisions within a budget."""
