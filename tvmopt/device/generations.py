"""GPU generations without kernels: everything newer than Hopper is refused by name and capability.

A Blackwell GPU runs neither ``sm_90a`` code (wgmma) nor any kernel that was measured here, so a
build for it would be one for another GPU.
"""

from __future__ import annotations

import re

from tvmopt.errors import ConfigError

#: Oldest and newest compute capability, times ten, that there are kernels for.
OLDEST_SM, NEWEST_SM = 70, 90
_SUPPORTED = "7.0 to 9.0 (Volta to Hopper)"
_BLACKWELL = "Blackwell"
# Compute capabilities, times ten, of the generations after Hopper.
_GENERATIONS = {100: _BLACKWELL, 103: _BLACKWELL, 110: _BLACKWELL, 120: _BLACKWELL, 121: _BLACKWELL}
# Words of product names, in lower case with hyphens, that name such a GPU.
_PRODUCTS = {
    r"g?b[123]00[a-z]?|gb10|b40|jetson-thor|thor|rtx-50[5-9]0|(.+-)?blackwell": _BLACKWELL,
    r"v?r[123]00|rubin": "Rubin",
}
_CAPABILITY = re.compile(r"(?:sm|compute)[_-](\d{2,3})[af]?(?![a-z0-9])")


def check_capability(sm: int, what: str) -> None:
    """Raise unless there are kernels for a compute capability.

    Args:
        sm: Compute capability, times ten.
        what: The GPU or the target, for the message.

    Raises:
        ConfigError: When it is newer than Hopper, or older than Volta.
    """
    if OLDEST_SM <= sm <= NEWEST_SM:
        return
    generation = _GENERATIONS.get(sm, "newer than Hopper" if sm > NEWEST_SM else "older than Volta")
    raise ConfigError(
        f"a GPU must be of compute capability {_SUPPORTED}, but {what} is of "
        f"{sm // 10}.{sm % 10} ({generation}), for which there are no kernels; name another GPU, "
        "or use target=host"
    )


def check_target_name(text: str) -> None:
    """Raise when the text of a target names a GPU newer than Hopper.

    Args:
        text: A product name such as ``"NVIDIA B200"``, an architecture such as ``"sm_100a"``, or
            JSON that holds one.

    Raises:
        ConfigError: As :func:`check_capability`.
    """
    lowered = text.lower()
    for found in _CAPABILITY.finditer(lowered):
        if int(found.group(1)) > NEWEST_SM:
            check_capability(int(found.group(1)), f"target {text!r}")
    name = re.sub(r"[^a-z0-9]+", "-", lowered).strip("-")
    name = re.sub(r"^(nvidia-|geforce-)+", "", name)
    for pattern, generation in _PRODUCTS.items():
        if re.match(rf"(?:{pattern})(?![a-z0-9])", name):
            raise ConfigError(
                f"a GPU must be of compute capability {_SUPPORTED}, but target {text!r} is of "
                f"generation {generation}, for which there are no kernels; name another GPU, or "
                "use target=host"
            )
