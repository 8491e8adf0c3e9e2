"""Installs XLA's compiler for NVIDIA GPUs into a separate folder; it needs no GPU. 0.6 GB.

python -m benchmarks.parallel.install_compiler FOLDER
export MSEDGE_GPU_COMPILER=FOLDER
"""

from __future__ import annotations

import subprocess
import sys

from cloud.parallel.checking.compilers import FOLDER, WHEELS


def main() -> int:
    """Exit code: 0 if it is installed, 2 for wrong arguments, else pip's."""
    if len(sys.argv) != 2:
        print("usage: python -m benchmarks.parallel.install_compiler FOLDER", file=sys.stderr)
        return 2
    # Without dependencies: the libraries that run programs (cuBLAS, cuDNN, NCCL) are not needed to compile them.
    line = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", sys.argv[1], *WHEELS]
    code = subprocess.run(line, check=False).returncode
    if code == 0:
        print(f"export {FOLDER}={sys.argv[1]}")
    return code


if __name__ == "__main__":
    sys.exit(main())
