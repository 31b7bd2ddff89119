"""DeepBench's matrix products on every framework, through deep5 and on the bare framework (figure 6 of the paper)."""

import deep5 as d5
from deep5.recipes.deepbench import LIMIT_GFLOP, METRICS, MUTABLE, WHOLE
from deep5.recipes.deepbench_by_hand import product

FIXED = {
    "problems": "deepbench.gemm",
    "bare": product,
    "box": "gemm-13",  # M=K=2560, N=64
    "limit_gflop": LIMIT_GFLOP,
}
SIZES = {
    "smoke": {"frameworks": ("pytorch", "tensorflow"), "limit_gflop": 0.2, "take": 3, "rounds": 7, "box": "gemm-1"},
    "whole": WHOLE,
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
