"""The packages of the distribution, found; everything else is in pyproject.toml and entry_points.txt."""

from setuptools import find_namespace_packages, setup

# Folders beside deep5/ that are its subpackages: the keys of package-dir in pyproject.toml.
ROOMS = ("frameworks", "metrics", "recipes")

setup(
    packages=[
        *find_namespace_packages(include=["deep5", "deep5.*"]),
        *(f"deep5.{name}" for room in ROOMS for name in find_namespace_packages(include=[room, f"{room}.*"])),
    ]
)
