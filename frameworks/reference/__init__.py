"""The reference back-end: NumPy and deep5's own kernels."""
