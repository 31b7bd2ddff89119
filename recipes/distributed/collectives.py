"""All-reduce over two ranks: deep5's five algorithms and the library's, from 4 bytes to 64 MiB.

`deep5 run distributed_collectives` is `deep5 bench collective` with a verdict: every result must be correct.
"""

import deep5 as d5

FIXED = {
    "collective": "all_reduce",
    "sizes": "4:64M",
    "algorithms": None,
    "op": "sum",
    "dtype": "float32",
    "segment": "128K",
    "rounds": 20,
    "ranks": 2,
    "launcher": "mpiexec",
}
MUTABLE = {"seed": 0}
METRICS = [(d5.RightResults(), 100), (d5.BusBandwidth(), None), (d5.CollectiveLatency(), None)]
SIZES = {"smoke": {"sizes": "4:64K", "rounds": 6, "metrics": [(d5.RightResults(), 100), *METRICS[1:]]}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
