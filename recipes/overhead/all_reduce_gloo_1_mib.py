"""All-reduce of 1.25 MiB by two ranks, through the communicator, against bare torch.distributed on gloo."""

import deep5 as d5
from deep5.recipes.overhead import all_reduces

FIXED = {
    "candidate": all_reduces.by_process_groups,
    "candidate_kwargs": {"size_bytes": 5 << 18},
    "baseline": all_reduces.by_gloo,
    "baseline_kwargs": {"size_bytes": 5 << 18},
    "steps": 8,
    "rounds": 1500,
    "threads": 1,
    "ranks": 2,
    "launcher": "torchrun",
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.0204")]
SIZES = {"smoke": {"steps": 2, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
