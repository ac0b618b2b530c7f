"""Puts the checkout's ops, kernels and suites into the wheel, as `fusebench/_shipped`; everything else is said in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("kernels", "suites")
"""Folders of the checkout; an editable install uses them where they are."""


class BuildWithShippedFolders(build_py):
    """Copies `kernels/` and `suites/` into the built package."""

    def run(self):
        package = Path(self.build_lib) / "fusebench"
        if not self.editable_mode:
            shutil.rmtree(package, ignore_errors=True)  # a file that is gone must not live on in an old build folder
        super().run()
        if not self.editable_mode:
            for name in SHIPPED:
                target = package / "_shipped" / name
                shutil.copytree(name, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".*"))


setup(cmdclass={"build_py": BuildWithShippedFolders})
