"""What a C++ operator costs from NumPy: one element."""

import deep5 as d5
from deep5.recipes.overhead.operators import cpp_by_numpy, nothing

FIXED = {"candidate": cpp_by_numpy, "baseline": nothing, "steps": 5000, "rounds": 60}
MUTABLE = {"seed": 0}
METRICS = [(d5.Overhead(), "<= 2 us")]
SIZES = {"smoke": {"steps": 500, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
