"""Find the bindings that use a variable."""

from __future__ import annotations

from tvm import relax


def uses_of(main: relax.Function) -> dict[relax.Var, list[relax.Binding | None]]:
    """Return the bindings that use each variable; None stands for the function's result."""
    uses: dict[relax.Var, list[relax.Binding | None]] = {}
    for block in main.body.blocks:
        for binding in block.bindings:
            for var in set(relax.analysis.free_vars(binding.value)):
                uses.setdefault(var, []).append(binding)
    for var in relax.analysis.free_vars(main.body.body):
        uses.setdefault(var, []).append(None)
    return uses
