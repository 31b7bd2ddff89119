"""What a Python operator on NumPy costs beyond its arithmetic."""

import deep5 as d5
from deep5.recipes.overhead.operators import python_by_deep5, python_by_hand

FIXED = {"candidate": python_by_deep5, "baseline": python_by_hand, "steps": 2000, "rounds": 60}
MUTABLE = {"seed": 0}
METRICS = [(d5.Overhead(), "<= 10 us")]
SIZES = {"smoke": {"steps": 200, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
