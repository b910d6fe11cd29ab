"""What pyproject.toml cannot say: ``data/`` stays where it is and travels as ``labkit/data``.

A list of packages in pyproject.toml is either found or written out, and only a written one may
name a package that stands elsewhere.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["labkit", "labkit.*"]), "labkit.data"],
    package_dir={"labkit.data": "data"},
)
