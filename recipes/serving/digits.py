"""LeNet served on the handwritten digits: throughput against latency at five rates of Poisson arrivals.

MLPerf's scenario `server`, with batches of up to 8 requests that wait at most 2 ms for others. A rate counts if 99 % of
its queries are answered within 50 ms. The network's weights are drawn from the seed: what it answers costs as much as
after training. 20 s on two cores.
"""

import deep5 as d5

FIXED = {
    "scenario": "server",
    "queries": 1000,
    "rate": (100, 200, 400, 800, 1600),
    "bound_s": 0.05,
    "transport": "in_process",
    "model": "lenet",
    "model_kwargs": {"activation": "tanh", "pooling": "average"},
    "dataset": "digits",
    "dataset_kwargs": {"size": 28, "test_share": 0.2, "split_seed": 0},
}

MUTABLE = {"max_batch": 8, "deadline_s": 0.002, "framework": "pytorch", "device": "cpu", "seed": 0}

METRICS = [
    (d5.HighestRate(0.05), ">= 100 queries/s"),
    (d5.FailedRequests(), "<= 0"),
    (d5.LatencyPercentile(50, rate=100), None),
    (d5.LatencyPercentile(90, rate=100), None),
    (d5.LatencyPercentile(99, rate=100), None),
    (d5.RequestThroughput(), None),
    (d5.Goodput(0.05), None),
]

SIZES = {"smoke": {"queries": 60, "rate": (100, 200)}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
