"""Trains the bundled example: a small CNN on scikit-learn's 8x8 handwritten digits.

    python -m examples.train_digits            # from the root of the repository

Needs PyTorch, which tvmopt itself does not:
`pip install torch==2.13.0 numpy scikit-learn onnx onnxruntime`. The seed is fixed and everything
runs on one thread with deterministic kernels, so that the same versions on the same kind of CPU
write the same files, to `tvmopt/examples/`, where `README.md` describes them.

The network has what a compiler for CNNs meets in the wild: Conv + BatchNormalization + Relu, a
residual Add, a depthwise-separable block, MaxPool, GlobalAveragePool, Gemm. Batch norm stays
unfolded in the ONNX file on purpose.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

from benchmarks.onnx_graph import GraphBuilder

FOLDER = Path(__file__).parents[1] / "tvmopt" / "examples"
SEED = 0
EPOCHS = 60
BATCH = 64
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2
TEST_FRACTION = 0.3
CALIBRATION_SAMPLES = 200
CLASSES = 10
MINIMUM_ACCURACY = 0.97


class Split(NamedTuple):
    """Images (N, 1, 8, 8) float32 in 0..1 and labels (N,) int64."""

    image: np.ndarray
    labels: np.ndarray

    def take(self, indices: np.ndarray) -> Split:
        """The samples at `indices`."""
        return Split(self.image[indices], self.labels[indices])


def load_splits() -> tuple[Split, Split, Split]:
    """Returns (training, calibration, test), stratified; calibration is a part of training."""
    digits = load_digits()
    image = (digits.images / 16).astype(np.float32)[:, np.newaxis]  # pixels count 0..16
    everything = Split(image, digits.target.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(image)),
        test_size=TEST_FRACTION,
        stratify=everything.labels,
        random_state=SEED,
    )
    _, calibration = train_test_split(
        train,
        test_size=CALIBRATION_SAMPLES,
        stratify=everything.labels[train],
        random_state=SEED,
    )
    return everything.take(train), everything.take(calibration), everything.take(test)


def conv_bn(in_channels: int, out_channels: int, kernel: int, groups: int = 1) -> nn.ModuleDict:
    """Conv without bias, padded to keep the size, and the BatchNorm after it."""
    conv = nn.Conv2d(
        in_channels, out_channels, kernel, padding=kernel // 2, groups=groups, bias=False
    )
    return nn.ModuleDict({"conv": conv, "bn": nn.BatchNorm2d(out_channels)})


class DigitsCNN(nn.Module):
    """(batch, 1, 8, 8) -> (batch, 10); `to_onnx` writes the same layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(1, 32, 3)
        self.residual1 = conv_bn(32, 32, 3)
        self.residual2 = conv_bn(32, 32, 3)
        self.depthwise = conv_bn(32, 32, 3, groups=32)
        self.pointwise = conv_bn(32, 64, 1)
        self.head = conv_bn(64, 64, 3)
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits."""

        def layer(value: torch.Tensor, name: str) -> torch.Tensor:
            modules = getattr(self, name)
            return modules["bn"](modules["conv"](value))

        value = functional.relu(layer(image, "stem"))
        branch = layer(functional.relu(layer(value, "residual1")), "residual2")
        value = functional.relu(branch + value)
        value = functional.relu(layer(value, "depthwise"))
        value = functional.relu(layer(value, "pointwise"))
        value = functional.max_pool2d(value, 2)
        value = functional.relu(layer(value, "head"))
        return self.classifier(value.mean(dim=(2, 3)))


def shifted(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Augmentation: every image moves by -1, 0 or 1 pixels in both directions."""
    padded = functional.pad(image, (1, 1, 1, 1))
    corners = torch.randint(0, 3, (len(image), 2), generator=generator).tolist()
    return torch.stack(
        [
            picture[:, row : row + 8, column : column + 8]
            for picture, (row, column) in zip(padded, corners, strict=True)
        ]
    )


def train(split: Split) -> DigitsCNN:
    """Trains for a fixed number of epochs; the test split plays no part, not even to stop."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    image, labels = torch.from_numpy(split.image), torch.from_numpy(split.labels)
    model = DigitsCNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for epoch in range(EPOCHS):
        total = 0.0
        for indices in torch.randperm(len(image), generator=generator).split(BATCH):
            logits = model(shifted(image[indices], generator))
            loss = functional.cross_entropy(logits, labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(indices)
        schedule.step()
        print(f"epoch {epoch + 1:2d}/{EPOCHS}  loss {total / len(image):.4f}")
    return model.eval()


def to_onnx(model: DigitsCNN) -> onnx.ModelProto:
    """Writes `image` (batch, 1, 8, 8) float32 -> `logits` (batch, 10), batch norm unfolded."""
    graph = GraphBuilder("digits_cnn")

    def constant(name: str, tensor: torch.Tensor) -> str:
        return graph.constant(name, tensor.detach().numpy())

    def layer(value: str, name: str) -> str:
        conv, bn = getattr(model, name).values()
        weight = constant(f"{name}.weight", conv.weight)
        value = graph.node(
            "Conv",
            [value, weight],
            f"{name}.conv",
            kernel_shape=list(conv.kernel_size),
            pads=list(conv.padding) * 2,
            group=conv.groups,
        )
        statistics = [
            constant(f"{name}.bn.{part}", getattr(bn, part))
            for part in ("weight", "bias", "running_mean", "running_var")
        ]
        return graph.node("BatchNormalization", [value, *statistics], f"{name}.bn", epsilon=bn.eps)

    def relu(value: str, name: str) -> str:
        return graph.node("Relu", [value], f"{name}.relu")

    stem = relu(layer("image", "stem"), "stem")
    branch = layer(relu(layer(stem, "residual1"), "residual1"), "residual2")
    value = relu(graph.node("Add", [branch, stem], "residual.add"), "residual")
    value = relu(layer(value, "depthwise"), "depthwise")
    value = relu(layer(value, "pointwise"), "pointwise")
    value = graph.node("MaxPool", [value], "maxpool", kernel_shape=[2, 2], strides=[2, 2])
    value = relu(layer(value, "head"), "head")
    value = graph.node("GlobalAveragePool", [value], "average")
    value = graph.node("Flatten", [value], "flatten")
    weight = constant("classifier.weight", model.classifier.weight)
    bias = constant("classifier.bias", model.classifier.bias)
    graph.node("Gemm", [value, weight, bias], "fc", "logits", transB=1)
    return graph.model({"image": ("batch", 1, 8, 8)}, {"logits": ("batch", CLASSES)})


def accuracy(model: onnx.ModelProto, split: Split) -> float:
    """Fraction of `split` that ONNX Runtime gets right."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (logits,) = session.run(None, {"image": split.image})
    return float(np.mean(logits.argmax(axis=1) == split.labels))


def main() -> None:
    """Trains, checks, and writes the files of the example."""
    training, calibration, test = load_splits()
    model = to_onnx(train(training))
    reached = accuracy(model, test)
    print(f"accuracy: {accuracy(model, training):.4f} on training, {reached:.4f} on test")
    if reached < MINIMUM_ACCURACY:
        raise SystemExit(
            f"Test accuracy must be at least {MINIMUM_ACCURACY}, but got {reached:.4f}; "
            "nothing was written: look at the losses above."
        )
    onnx.save(model, FOLDER / "digits_cnn.onnx")
    np.savez_compressed(FOLDER / "digits_eval.npz", **test._asdict())
    np.savez_compressed(FOLDER / "digits_calibration.npz", **calibration._asdict())


if __name__ == "__main__":
    main()
