"""What trainer, events and metrics add to a step, on an executor that does nothing."""

import deep5 as d5
from deep5.recipes.overhead.training import bare_loop, noop_trainer

FIXED = {"candidate": noop_trainer, "baseline": bare_loop, "steps": 2000, "rounds": 60}
MUTABLE = {"seed": 0}
METRICS = [(d5.Overhead(), "<= 5 us")]
SIZES = {"smoke": {"steps": 200, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
