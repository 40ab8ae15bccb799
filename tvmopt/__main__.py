"""``python -m tvmopt doctor``."""

from __future__ import annotations

import sys

from tvmopt.doctor import main

_USAGE = "usage: python -m tvmopt doctor"

if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(f"{_USAGE}\n\nPrint what tvmopt finds on this machine and how to cure each problem.")
        sys.exit(0)
    if sys.argv[1:] != ["doctor"]:
        print(f"{_USAGE}, but got {' '.join(sys.argv[1:]) or 'nothing'}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
