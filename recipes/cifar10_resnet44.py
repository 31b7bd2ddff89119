"""ResNet-44 on CIFAR-10 with momentum, to 93 % test accuracy: the tutorial's recipe in deep5's vocabulary.

The files of CIFAR-10's binary version are looked for in `$DEEP5_DATA/cifar-10-batches-bin`. The smoke size needs none:
it runs a ResNet-8 on made-up images of the same shape.
"""

import deep5 as d5
import deep5.frameworks.pytorch as d5fw

FIXED = {
    "model": "resnet",
    "model_kwargs": {"depth": 44},
    "dataset": "cifar10",
    "train_sampler": d5.ShuffleSampler,
    "epochs": 180,
}

MUTABLE = {
    "batch_size": 64,
    "executor": d5fw.from_model,
    "executor_kwargs": {"device": d5.CPUDevice()},
    "optimizer": d5fw.MomentumOptimizer,
    "optimizer_args": (0.1, 0.9),
}

METRICS = [(d5.TestAccuracy(), 93.0)]

SIZES = {
    "smoke": {
        "model_kwargs": {"depth": 8},
        "dataset": "synthetic",
        "dataset_kwargs": {"shape": (3, 32, 32), "train": 96, "test": 32},
        "epochs": 1,
        "batch_size": 32,
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
