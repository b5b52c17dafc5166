"""Images to train on, drawn and encoded at the start and decoded anew for every sample."""

from __future__ import annotations

import io
import random
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.utils.data import Dataset

SHAPES = ("circle", "square", "triangle", "cross")
WIDTH, HEIGHT = 320, 240
SIDE = 64
"""Pixels along each side of a sample."""


class Shapes(Dataset[tuple[Tensor, int]]):
    """JPEG images of simple shapes, labelled by the shape's place in SHAPES.

    length: samples in an epoch.
    cost: how often each image is decoded, so how much work a sample is.
    slow_share: the share of samples, 0 to 1, that are slow. Which ones they are is fixed by their index.
    slowness: how many times as much work a slow sample is.
    """

    FILES = 256

    def __init__(self, length: int = 4096, cost: int = 1, slow_share: float = 0.0, slowness: int = 20) -> None:
        if length < 1 or cost < 1 or slowness < 1:
            raise ValueError(f"length, cost and slowness must be at least 1, not {length}, {cost}, {slowness}")
        if not 0 <= slow_share <= 1:
            raise ValueError(f"slow_share must be between 0 and 1, not {slow_share}")
        self.length, self.cost, self.slow_share, self.slowness = length, cost, slow_share, slowness
        self._files = [draw(number) for number in range(min(length, self.FILES))]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number = index % len(self._files)
        image = decode(self._files[number])
        for _ in range(self.cost * (self.slowness if self.is_slow(index) else 1) - 1):
            decode(self._files[number])
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.to(torch.float32).div_(255), number % len(SHAPES)

    def is_slow(self, index: int) -> bool:
        # Multiplying by an odd constant scatters neighbours over the whole range of 32 bits.
        return (index * 2654435761 + 1) % 2**32 < self.slow_share * 2**32


def decode(file: bytes) -> Image.Image:
    with Image.open(io.BytesIO(file)) as image:
        return image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)


def draw(number: int) -> bytes:
    """A shape of random place, size and colour on noise, as a JPEG file: the same for the same number."""
    chance = random.Random(number)
    noise = np.random.default_rng(number).integers(0, 160, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    radius = chance.randint(30, 80)
    x, y = chance.randint(radius, WIDTH - radius), chance.randint(radius, HEIGHT - radius)
    colour = (chance.randint(120, 255), chance.randint(120, 255), chance.randint(120, 255))
    _DRAWERS[number % len(SHAPES)](ImageDraw.Draw(image), x, y, radius, colour)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


Colour = tuple[int, int, int]
Drawer = Callable[[ImageDraw.ImageDraw, int, int, int, Colour], None]


def _circle(canvas: ImageDraw.ImageDraw, x: int, y: int, radius: int, colour: Colour) -> None:
    canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def _square(canvas: ImageDraw.ImageDraw, x: int, y: int, radius: int, colour: Colour) -> None:
    canvas.rectangle((x - radius, y - radius, x + radius, y + radius), fill=colour)


def _triangle(canvas: ImageDraw.ImageDraw, x: int, y: int, radius: int, colour: Colour) -> None:
    canvas.polygon(((x, y - radius), (x - radius, y + radius), (x + radius, y + radius)), fill=colour)


def _cross(canvas: ImageDraw.ImageDraw, x: int, y: int, radius: int, colour: Colour) -> None:
    arm = radius // 3
    canvas.rectangle((x - radius, y - arm, x + radius, y + arm), fill=colour)
    canvas.rectangle((x - arm, y - radius, x + arm, y + radius), fill=colour)


_DRAWERS: tuple[Drawer, ...] = (_circle, _square, _triangle, _cross)
