"""Errors of ONNX and of frameworks, as errors of deep5 that name the node and the remedy."""
