"""Functions of JAX arrays that generated code calls, one idea a module."""
