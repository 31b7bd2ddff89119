"""Training steps of the workloads of other recipes: deep5's, and hand-written ones for PyTorch and JAX."""
