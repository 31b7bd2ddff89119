"""An agent that balances a pole by REINFORCE, to a mean return of 475 over 100 episodes. Seconds on two cores.

CartPole-v1 of Gymnasium (MIT license) gives a reward of 1 for each step until the pole falls, at most 500; its
registration calls 475 solved. Actions drawn uniformly reach about 22, the untrained network's about 10.
"""

import deep5 as d5

FIXED = {
    "model": "policy_network",
    "model_kwargs": {"features": 4, "hidden": (64,), "actions": 2},
    "dataset": "environment",
    "dataset_kwargs": {"name": "CartPole-v1"},
    "train_sampler": "episodes",
    "train_sampler_kwargs": {"batches": 10, "discount": 0.99},
    # The metric plays.
    "validation_sampler": None,
    "epochs": 8,
}

MUTABLE = {
    "batch_size": 2000,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.01},
    "schedules": {"lr": d5.Cosine(0.01)},
    "seed": 0,
}

METRICS = [
    (d5.MeanReturn(episodes=100), ">= 475"),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.StepLatency(), None),
    (d5.PeakMemory(), None),
]

SIZES = {"smoke": {"epochs": 2, "batch_size": 200, "train_sampler_kwargs": {"batches": 6}}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
