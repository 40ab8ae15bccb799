"""``python -m tvmopt``, the same as the command ``tvmopt``."""

from __future__ import annotations

from tvmopt.cli import main

if __name__ == "__main__":
    main()
