"""Every parameter of every entry point, declared once.

Command lines, MLproject, YAML files, Python signatures and the documentation follow from
:data:`COMMANDS`.
"""

from tvmopt.parameters.commands import COMMANDS
from tvmopt.parameters.declare import Parameter

ENTRY_POINTS: dict[str, tuple[Parameter, ...]] = {
    name: command.parameters() for name, command in COMMANDS.items()
}
"""The parameters of each entry point, in order."""

__all__ = ["COMMANDS", "ENTRY_POINTS", "Parameter"]
