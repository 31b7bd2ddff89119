"""LeNet on the digits with gradients of increasing staleness: the accuracy that staleness costs and the time it saves.

`deep5 study distributed_staleness_study` trains on four ranks, the second of which is delayed by 5 ms per step:
synchronously, by all-reduce; by a parameter server that lets no rank be more than 0, 1, 4 or 16 steps ahead of the
slowest; and by a server without a bound.

All use the same learning rate and 64 samples per step. All-reduce makes one update of them, a server makes four, each
from the 16 samples of one rank. With a bound of 0 these gradients are as fresh as a server allows; larger bounds make
them staler.
"""

import deep5 as d5
from deep5.recipes.distributed.workload import METRICS, MUTABLE, fixed

FIXED = {key: value for key, value in fixed("").items() if key not in ("scheme", "scheme_kwargs")}
MUTABLE = {
    **MUTABLE,
    "events": (d5.SlowRank(rank=1, delay_ms=5),),
    "scheme": "stale_synchronous",
    "scheme_kwargs": {"bound": 4},
    "ranks": 4,
    "threads": 1,
}
METRICS = [*((metric, None) for metric, _ in METRICS), (d5.Staleness(), None)]
SIZES = {"smoke": {"epochs": 2, "dataset_kwargs": {"limit": 320}}}

STUDY = {
    "in step": {"scheme": "all_reduce"},
    **{f"bound {bound}": {"scheme": "stale_synchronous", "scheme_kwargs": {"bound": bound}} for bound in (0, 1, 4, 16)},
    "asynchronous": {"scheme": "asynchronous"},
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
