"""A record of what the kernel half of the package emits and ranks, see CONTRIBUTING.md."""
