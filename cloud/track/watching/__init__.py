"""What a run records beside its scalars: the model as a graph, memory, where the time of a step goes."""

from __future__ import annotations
