"""Predefined networks, each a function of sizes, loss, dtype and seed."""

from deep5.networks.zoo.adversarial import gan
from deep5.networks.zoo.agents import policy_network, q_network
from deep5.networks.zoo.bottleneck import autoencoder
from deep5.networks.zoo.branched import googlenet, inception
from deep5.networks.zoo.center_net import center_net
from deep5.networks.zoo.classical import lenet, mlp
from deep5.networks.zoo.compact import mobilenet_v2, squeezenet
from deep5.networks.zoo.decoder import gpt
from deep5.networks.zoo.decoder_cached import gpt_cached
from deep5.networks.zoo.dense import densenet121
from deep5.networks.zoo.diffusion import denoiser
from deep5.networks.zoo.encoder import transformer
from deep5.networks.zoo.graph import gcn
from deep5.networks.zoo.plain import alexnet, vgg
from deep5.networks.zoo.recommendation import dlrm
from deep5.networks.zoo.recurrent import lstm, lstm_language_model
from deep5.networks.zoo.residual import resnet18, resnet34, resnet50
from deep5.networks.zoo.residual_small import resnet, resnet18_small, wide_resnet
from deep5.networks.zoo.sequence import attention_seq2seq
from deep5.networks.zoo.speech import deep_speech
from deep5.networks.zoo.ssd import ssd
from deep5.networks.zoo.vision_transformer import vit

__all__ = [
    "alexnet",
    "attention_seq2seq",
    "autoencoder",
    "center_net",
    "deep_speech",
    "denoiser",
    "densenet121",
    "dlrm",
    "gan",
    "gcn",
    "googlenet",
    "gpt",
    "gpt_cached",
    "inception",
    "lenet",
    "lstm",
    "lstm_language_model",
    "mlp",
    "mobilenet_v2",
    "policy_network",
    "q_network",
    "resnet",
    "resnet18",
    "resnet18_small",
    "resnet34",
    "resnet50",
    "squeezenet",
    "ssd",
    "transformer",
    "vgg",
    "vit",
    "wide_resnet",
]
