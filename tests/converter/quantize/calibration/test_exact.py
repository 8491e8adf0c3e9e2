"""Exact sums: equal to float64's, and independent of order and threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from converter.quantize.calibration import exact

THREADS = """
import hashlib
import numpy as np
from converter.quantize.calibration import exact
from converter.quantize.rounding import gptq
rng = np.random.default_rng(0)
x = rng.standard_normal((500, 150)) * np.exp(rng.standard_normal(150))
gram = exact.Gram(np.abs(x).max(axis=0))
gram.add(x)
w = rng.standard_normal((150, 70)).astype(np.float32)
values, scales = gptq.round_layer(w, gram.matrix, np.arange(150) // 32, bits=4)
data = exact.product(x.T, x).tobytes() + gram.matrix.tobytes() + values.tobytes() + scales.tobytes()
print(hashlib.sha256(data).hexdigest())
"""


@given(st.integers(0, 2**32 - 1), st.integers(0, 9), st.integers(0, 300), st.integers(1, 9))
def test_product_is_that_of_float64(seed, m, k, n):
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(s) * np.exp(rng.standard_normal(s) * 2) for s in ((m, k), (k, n)))
    bound = np.abs(a).max(axis=1, initial=0)[:, None] * np.abs(b).max(axis=0, initial=0) * k
    assert (np.abs(exact.product(a, b) - a @ b) <= 2.0**-34 * bound).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_gram_knows_no_order(seed, parts):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((40, 6)).astype(np.float32) * [1, 1e-6, 1e6, 0, 1, 3]
    largest = np.abs(x).max(axis=0)
    whole, split = exact.Gram(largest), exact.Gram(largest)
    whole.add(x)
    for part in np.array_split(rng.permutation(x), parts):
        split.add(part)
    assert np.array_equal(whole.matrix, split.matrix)
    wanted = x.T.astype(np.float64) @ x / len(x)
    assert np.allclose(whole.matrix, wanted, atol=1e-3 * np.sqrt(np.outer(np.diag(wanted), np.diag(wanted))).max())
    assert np.allclose(np.diag(whole.matrix), np.diag(wanted), rtol=1e-3)


@given(st.integers(0, 2**32 - 1))
def test_mean_knows_no_order(seed):
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((n, 3)) * 10.0 ** rng.integers(-6, 6) for n in (1, 5, 2, 9)]
    results = []
    for order in (range(4), rng.permutation(4)):
        mean = exact.Mean()
        for index in order:
            mean.add(parts[index])
        results.append(mean.value())
    assert np.array_equal(*results)
    assert np.allclose(results[0], np.concatenate(parts).mean(axis=0))


def test_results_do_not_depend_on_blas_threads():
    digests = set()
    for threads in ("1", "2"):
        env = os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        ran = subprocess.run([sys.executable, "-c", THREADS], env=env, capture_output=True, text=True, check=True)
        digests.add(ran.stdout.strip())
    assert len(digests) == 1 and len(digests.pop()) == len(hashlib.sha256().hexdigest())
