"""Integer models and the digests of their results, which must be the same on every target.

python -m tests.integers write FOLDER    the bundles, for other machines
python -m tests.integers update          write digests.txt anew, from this machine's results
python -m tests.integers browser|boards  compare those of Chromium with one and two threads, or of emulated Cortex-M
"""
