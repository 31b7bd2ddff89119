"""What trainer, metrics, progress bar, CSV log and MLPerf log add to a step."""

import deep5 as d5
from deep5.recipes.overhead.training import bare_loop, logging_trainer

FIXED = {
    "candidate": logging_trainer,
    "candidate_kwargs": {"busy_us": 100.0},
    "baseline": bare_loop,
    "baseline_kwargs": {"busy_us": 100.0},
    "steps": 3000,
    "rounds": 30,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Overhead(), "<= 20 us")]
SIZES = {"smoke": {"steps": 100, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
