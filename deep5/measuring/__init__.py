"""Samples, statistics, timing, and the machine they are measured on."""
