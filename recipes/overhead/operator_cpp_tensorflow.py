"""A C++ operator inside tf.function against TensorFlow's own: one element."""

import deep5 as d5
from deep5.recipes.overhead.operators import cpp_in_tensorflow, square_in_tensorflow

FIXED = {"candidate": cpp_in_tensorflow, "baseline": square_in_tensorflow, "steps": 1000, "rounds": 60}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.3")]
SIZES = {"smoke": {"steps": 100, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
