"""Networks by name, each a function of its sizes, loss, dtype and seed."""

from deep5.networks.zoo.branched import inception
from deep5.networks.zoo.classical import lenet, mlp
from deep5.networks.zoo.encoder import transformer
from deep5.networks.zoo.recurrent import lstm
from deep5.networks.zoo.residual import resnet, resnet18, resnet50

__all__ = ["inception", "lenet", "lstm", "mlp", "resnet", "resnet18", "resnet50", "transformer"]
