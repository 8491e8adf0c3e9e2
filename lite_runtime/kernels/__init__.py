"""Numba source of every native kernel, one file per family; only `lite_runtime.native.build` imports them."""
