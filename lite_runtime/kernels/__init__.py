"""Numba source of every native kernel, a family a file; `lite_runtime.build` compiles them, nothing else imports them."""
