"""Numba source of every native kernel, a family a file; only `lite_runtime.native.build` imports them."""
