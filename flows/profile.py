"""Entry point ``profile``, as MLproject starts it."""

from tvmopt.cli import run_entry

if __name__ == "__main__":
    run_entry("profile")
