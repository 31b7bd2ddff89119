"""placeholder"""

import deep5 as d5

FIXED = {
    "model": "q_network",
    "model_kwargs": {"features": 4, "hidden": (128, 128), "actions": 2},
    "dataset": "environment",
    "dataset_kwargs": {"name": "CartPole-v1"},
    "train_sampler": "replay",
    "train_sampler_kwargs": {"batches": 1000},
    "validation_sampler": None,
    "epochs": 20,
}

MUTABLE = {
    "batch_size": 64,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.001},
    "schedules": {"lr": d5.Cosine(0.001)},
    "seed": 0,
}

METRICS = [
    (d5.MeanReturn(episodes=100), ">= 475"),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.StepLatency(), None),
    (d5.PeakMemory(), None),
]

SIZES = {"smoke": {"epochs": 2, "train_sampler_kwargs": {"batches": 20, "warm_up": 100, "capacity": 1000}}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
