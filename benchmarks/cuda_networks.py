"""Networks of the GPU benchmarks in PyTorch: an MLP, ResNets, transformers.

Weights are random (He initialisation, seed 0). The networks have no BatchNorm, because every
compiler folds it into the preceding convolution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.cuda_transformers import BertBase, VitB16


class Mlp(nn.Module):
    """MLP of TVM's ``relay.testing.mlp``: (batch, 224, 224, 3) -> (batch, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(224 * 224 * 3, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
            nn.Linear(64, 1000), nn.Softmax(-1),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Class probabilities."""
        return self.layers(image)


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2)


class _Block(nn.Module):
    """Residual block: two 3 x 3 convolutions, or a bottleneck of 1 x 1, 3 x 3 and 1 x 1."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        if bottleneck:
            outputs = 4 * width
            convs = [_conv(inputs, width, 1), _conv(width, width, 3, stride)]
            convs += [_conv(width, outputs, 1)]
        else:
            outputs = width
            convs = [_conv(inputs, width, 3, stride), _conv(width, width, 3)]
        self.convs = nn.ModuleList(convs)
        plain = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if plain else _conv(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual sum after the activation."""
        y = x
        for conv in self.convs[:-1]:
            y = torch.relu(conv(y))
        return torch.relu(self.convs[-1](y) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet for ImageNet: (batch, 3, 224, 224) -> (batch, 1000).

    Args:
        blocks: Number of blocks in each of the four stages.
        bottleneck: Whether blocks are bottlenecks.
    """

    def __init__(self, blocks: tuple[int, ...], bottleneck: bool) -> None:
        super().__init__()
        self.stem = _conv(3, 64, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        layers: list[nn.Module] = []
        channels = 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for number in range(count):
                stride = 2 if stage and not number else 1
                layers.append(_Block(channels, width, stride, bottleneck))
                channels = width * (4 if bottleneck else 1)
        self.blocks = nn.Sequential(*layers)
        self.classify = nn.Linear(channels, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        x = self.blocks(self.pool(torch.relu(self.stem(image))))
        return self.classify(x.mean((2, 3)))


class _EncoderLayer(nn.Module):
    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape

        def split_heads(y: torch.Tensor) -> torch.Tensor:
            return y.reshape(batch, length, self.heads, hidden // self.heads).transpose(1, 2)

        query, key, value = (split_heads(f(x)) for f in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) * (hidden // self.heads) ** -0.5
        mixed = torch.softmax(scores, -1) @ value
        x = self.norms[0](x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden)))
        return self.norms[1](x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """Encoder layers of MiniLM-L6: (batch, length, 384) -> (batch, length, 384)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(_EncoderLayer(384, 12, 1536) for _ in range(6)))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Hidden states after the last layer."""
        return self.layers(states)


@dataclasses.dataclass(frozen=True)
class Network:
    """One network of the table.

    Attributes:
        name: Topology, batch size and dtype, joined by dashes.
        make: Function that makes the module in float32.
        shape: Shape of the input.
        dtype: Dtype to run in.
        images: Whether the input is images; PyTorch then runs in channels-last layout.
        tokens: Number of tokens of the vocabulary, if the input is tokens; else 0.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    dtype: str
    images: bool = False
    tokens: int = 0

    def module(self) -> nn.Module:
        """Return the module on the CPU in float32, with weights of seed 0."""
        torch.manual_seed(0)
        made = self.make().eval()
        for layer in made.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                layer.weight.data *= 0.7  # keeps residual sums from growing with depth
                nn.init.normal_(layer.bias, std=0.1)
        return made.requires_grad_(False)

    def example(self) -> torch.Tensor:
        """Return a random input on the CPU in float32 or int64, of seed 1."""
        seeded = torch.Generator().manual_seed(1)
        if self.tokens:
            return torch.randint(self.tokens, self.shape, generator=seeded)
        return torch.randn(self.shape, generator=seeded)


def _resnet18() -> nn.Module:
    return ResNet((2, 2, 2, 2), bottleneck=False)


def _resnet50() -> nn.Module:
    return ResNet((3, 4, 6, 3), bottleneck=True)


_IMAGE = (3, 224, 224)
#: Networks by name.
NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        Network("mlp-128-float32", Mlp, (128, 224, 224, 3), "float32"),
        Network("mlp-128-float16", Mlp, (128, 224, 224, 3), "float16"),
        Network("resnet18-128-float32", _resnet18, (128, *_IMAGE), "float32", images=True),
        Network("resnet18-128-float16", _resnet18, (128, *_IMAGE), "float16", images=True),
        Network("resnet50-128-float16", _resnet50, (128, *_IMAGE), "float16", images=True),
        Network("resnet50-1-float16", _resnet50, (1, *_IMAGE), "float16", images=True),
        Network("resnet50-64-float16", _resnet50, (64, *_IMAGE), "float16", images=True),
        Network("minilm-32-float16", Encoder, (32, 128, 384), "float16"),
        Network("minilm-1-float16", Encoder, (1, 128, 384), "float16"),
        *(
            Network(f"vit_b16-{batch}-float16", VitB16, (batch, *_IMAGE), "float16", images=True)
            for batch in (1, 8, 32)
        ),
        *(
            Network(f"bert_base-{batch}-float16", BertBase, (batch, 128), "float16", tokens=30522)
            for batch in (1, 8, 32)
        ),
    )
}


def to_relax(network: Network) -> Any:
    """Import the float32 network from PyTorch into Relax, weights as constants."""
    from tvm.relax.frontend.torch import from_exported_program

    exported = torch.export.export(network.module(), (network.example(),))
    return from_exported_program(
        exported, unwrap_unit_return_tuple=True, run_ep_decomposition=False
    )


def lower_network(network: Network, target: Any) -> Any:
    """Convert a network to its dtype, NHWC for images, and lower it to fused PrimFuncs."""
    from tvmopt.transform.conversion import convert_module
    from tvmopt.transform.lower import lower

    converted = convert_module(
        to_relax(network), dtype=network.dtype,
        layout="NHWC" if network.images else "NCHW", skip_layers={}, keep_dtype={},
        narrow_norms=True,
    )  # fmt: skip
    return lower(converted.mod, target.to_tvm())


def load_network(path: str, image: torch.Tensor, size: int = 0) -> Callable[[], Any]:
    """Load the library of a network; return a call of one of its sizes on a GPU tensor."""
    import tvm

    from tvmopt.runtime.library import open_library
    from tvmopt.runtime.network import network

    executor = open_library(path, threads=0, native=False, device=tvm.cuda())
    return network(executor, [tvm.runtime.from_dlpack(image)], on_gpu=True, size=size)
