"""Convert Hopper configurations to hints (for tuning records) and back."""

from __future__ import annotations

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.config import DEPTH_BYTES, Config
from tvmopt.kernels.cuda.hopper.problem import BYTES

GEMM = "hopper_gemm"
CONV = "hopper_conv"
_BOX = ("box_images", "box_lines", "box_columns")


def hint_of(
    template: str, config: Config, dtype: str, arch: CudaArch,
    box: tuple[int, int, int] | None = None,
) -> CudaHint:  # fmt: skip
    """Return the hint that encodes ``config``.

    Args:
        template: ``GEMM`` or ``CONV``.
        config: The configuration.
        dtype: Dtype of the operands.
        arch: The GPU.
        box: For a convolution: images, rows and columns of the pixel box of a warpgroup.
    """
    options = {
        "persistent": int(config.persistent),
        "staged": int(config.staged),
        "buffers": config.buffers,
        "flight": config.flight,
    }
    if config.apart:
        options["apart"] = 1
    if config.beside > 1:
        options["beside"] = config.beside
    if box is not None:
        options |= dict(zip(_BOX, box, strict=True))
    return CudaHint(
        template,
        arch,
        block=(config.rows, config.columns),
        warp=(64 * config.atoms, config.columns),
        rstep=DEPTH_BYTES // BYTES[dtype],
        stages=config.stages,
        async_copy=True,
        split_k=config.split,
        raster=config.raster,
        swap=config.swap,
        cluster=config.cluster,
        options=tuple(options.items()),
    )


def config_of(hint: CudaHint) -> Config:
    """Return the configuration that ``hint`` encodes."""
    atoms = hint.warp[0] // 64
    return Config(
        atoms=atoms,
        consumers=hint.block[0] // (64 * atoms),
        columns=hint.block[1],
        stages=hint.stages,
        cluster=hint.cluster,
        beside=hint.option("beside", 1),
        split=hint.split_k,
        apart=bool(hint.option("apart")),
        swap=hint.swap,
        raster=hint.raster,
        persistent=bool(hint.option("persistent", 1)),
        staged=bool(hint.option("staged")),
        buffers=hint.option("buffers", 2),
        flight=hint.option("flight", 1),
        sms=hint.arch.sms,
    )


def box_of(hint: CudaHint) -> tuple[int, int, int] | None:
    """Return images, rows and columns of a convolution's pixel box; None where unset."""
    a, b, c = (hint.option(name) for name in _BOX)
    return (a, b, c) if a else None
