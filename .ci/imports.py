"""Import every module of the installed package ``tvmopt``."""

from __future__ import annotations

import importlib
import pkgutil

import tvmopt


def main() -> None:
    """Import all; an error of an import ends the process."""
    names = [found.name for found in pkgutil.walk_packages(tvmopt.__path__, "tvmopt.")]
    for name in names:
        importlib.import_module(name)
    print(f"{len(names)} modules of {tvmopt.__file__}")


if __name__ == "__main__":
    main()
