"""The tracking store: runs of commands and stages, artifacts, trust, who is alive."""
