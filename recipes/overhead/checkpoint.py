"""A checkpoint of a training with 100 million parameters, against writing as many bytes to one file."""

import deep5 as d5
from deep5.recipes.overhead import saving

FIXED = {
    "candidate": saving.checkpoint,
    "candidate_kwargs": {"features": 10_000, "hidden": 10_000},
    "baseline": saving.bytes_by_hand,
    "baseline_kwargs": {"features": 10_000, "hidden": 10_000},
    "steps": 1,
    "rounds": 20,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.2")]
SIZES = {
    "smoke": {
        "candidate_kwargs": {"features": 1000, "hidden": 1000},
        "baseline_kwargs": {"features": 1000, "hidden": 1000},
        "rounds": 6,
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
