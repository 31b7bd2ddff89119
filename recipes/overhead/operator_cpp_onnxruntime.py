"""What a C++ operator costs in ONNX Runtime: a session of one node, one element."""

import deep5 as d5
from deep5.recipes.overhead.operators import cpp_in_onnxruntime, nothing

FIXED = {"candidate": cpp_in_onnxruntime, "baseline": nothing, "steps": 2000, "rounds": 60}
MUTABLE = {"seed": 0}
METRICS = [(d5.Overhead(), "<= 5 us")]
SIZES = {"smoke": {"steps": 200, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
