"""Functions of JAX arrays that generated code calls, one topic per module."""
