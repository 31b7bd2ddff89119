"""An LSTM over the characters of the standard library's docstrings."""

import deep5 as d5

LENGTH = 64

FIXED = {
    "model": "lstm_language_model",
    # Room for the characters of other versions of Python: 3.10 to 3.13 have 111 to 118.
    "model_kwargs": {"vocabulary": 128, "length": LENGTH, "width": 128, "layers": 1, "dropout": 0.0},
    "dataset": "docstrings",
    "dataset_kwargs": {"tokens": "characters", "length": LENGTH},
    "train_sampler": "shuffle",
    "validation_sampler": "ordered",
    "epochs": 1,
}

MUTABLE = {
    "batch_size": 32,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.005},
    "schedules": {"lr": d5.WarmUp(d5.Cosine(0.005), steps=50)},
    "seed": 0,
}

METRICS = [
    (d5.BitsPerByte(), "<= 2.5"),
    (d5.Perplexity(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.Throughput(), None),
    (d5.PeakMemory(), None),
]

SIZES = {
    "smoke": {
        "model_kwargs": {"length": 32, "width": 32},
        "dataset_kwargs": {"length": 32, "limit": 256, "test_limit": 64},
        "batch_size": 32,
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
