"""The bare matrix product of ONNX Runtime against PyTorch's: what their training steps owe to it."""

import deep5 as d5
from deep5.recipes.overhead.products import onnxruntime_product, pytorch_product

FIXED = {
    "candidate": onnxruntime_product,
    "candidate_kwargs": {"size": 512},
    "baseline": pytorch_product,
    "baseline_kwargs": {"size": 512},
    "steps": 20,
    "rounds": 60,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), None)]
SIZES = {"smoke": {"steps": 2, "rounds": 6}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
