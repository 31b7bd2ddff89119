"""Communicators: MPI, PyTorch's process groups, threads."""
