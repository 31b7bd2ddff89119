"""ResNet-44 on CIFAR-10 with momentum, to 93 % test accuracy: the tutorial's recipe in deep5.

The hyperparameters are those of He et al., Deep residual learning for image recognition, CVPR 2016, section 4.2:
batches of 128, momentum 0.9, a weight decay of 0.0001, and a learning rate of 0.1 that is divided by ten at 32 000 and
again at 48 000 of 64 000 steps: here after one half and three quarters of the 180 epochs, i.e. 70 380 steps at 391 per
epoch. Each image is normalized, padded by 4 zero pixels, cropped at random, and mirrored with probability 1/2. The
paper reports an error of 7.17 % for this depth (table 6), so the goal is slightly stricter.

The optimizer is an update rule instead of the tutorial's `d5fw.MomentumOptimizer`: the native one takes deep5's
arguments for momentum, which do not include weight decay.

The recipe reads CIFAR-10's binary version from `$DEEP5_DATA/cifar-10-batches-bin`, or downloads it (162 MiB). The smoke
size does not need it: it trains a ResNet-8 for two epochs on synthetic files in the same format.
"""

import deep5 as d5
import deep5.frameworks.pytorch as d5fw
from deep5.recipes.penalised_momentum import PenalisedMomentum

FIXED = {
    "model": "resnet",
    "model_kwargs": {"depth": 44},
    "dataset": "cifar10",
    "train_sampler": d5.ShuffleSampler,
    "train_transforms": [d5.RandomCrop(32, padding=4), d5.Flip()],
    "epochs": 180,
}

MUTABLE = {
    "batch_size": 128,
    "executor": d5fw.from_model,
    "executor_kwargs": {"device": d5.CPUDevice()},
    "optimizer": PenalisedMomentum,
    "optimizer_args": (0.1, 0.9),
    "optimizer_kwargs": {"weight_decay": 0.0001},
    "schedules": {"lr": d5.Piecewise(epochs={0: 0.1, 90: 0.01, 135: 0.001})},
    "prefetch": 2,
}

METRICS = [(d5.TestAccuracy(), 93.0)]

SIZES = {
    "smoke": {
        "model_kwargs": {"depth": 8},
        "dataset": "synthetic_files",
        "dataset_kwargs": {"like": "cifar10", "train": 96, "test": 32},
        "epochs": 2,
        "batch_size": 32,
        "schedules": {"lr": d5.Piecewise(epochs={0: 0.1, 1: 0.01})},
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
