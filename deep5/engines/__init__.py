"""Engines: where the runs of sweeps are carried out, each with the interface of `concurrent.futures.Executor`."""
