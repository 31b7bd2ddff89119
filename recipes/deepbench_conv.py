"""DeepBench's convolutions on every framework, through deep5 and on the bare framework (figure 6 of the paper)."""

import deep5 as d5
from deep5.recipes.deepbench import LIMIT_GFLOP, METRICS, MUTABLE, WHOLE
from deep5.recipes.deepbench_by_hand import convolution

FIXED = {
    "problems": "deepbench.conv",
    "bare": convolution,
    "backward": True,
    "box": "conv-24",  # N=16, C=3, H=W=224, 3x3
    "limit_gflop": LIMIT_GFLOP,
}
SIZES = {
    "smoke": {
        "frameworks": ("pytorch", "tensorflow"),
        "uses": ("inference_server",),
        "backward": False,  # inference sizes have no gradients
        "box": "conv-101",
        "limit_gflop": 0.1,
        "take": 2,
        "rounds": 7,
    },
    "whole": WHOLE,
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
