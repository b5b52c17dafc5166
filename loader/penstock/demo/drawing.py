"""Pictures of simple shapes, encoded as JPEG files."""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle", "cross")
WIDTH, HEIGHT = 160, 120
FILES = 128


@functools.cache
def files() -> tuple[bytes, ...]:
    """All that there are; drawn once, so that ranks forked later need not draw again."""
    return tuple(draw(number) for number in range(FILES))


def draw(number: int) -> bytes:
    """A shape of random place, size and colour on noise, as a JPEG file: the same for the same number."""
    chance = random.Random(number)
    noise = np.random.default_rng(number).integers(0, 160, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    radius = chance.randint(15, 40)
    x, y = chance.randint(radius, WIDTH - radius), chance.randint(radius, HEIGHT - radius)
    colour = (chance.randint(120, 255), chance.randint(120, 255), chance.randint(120, 255))
    _DRAWERS[number % len(SHAPES)](ImageDraw.Draw(image), x, y, radius, colour)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def decode(file: bytes, side: int) -> Image.Image:
    with Image.open(io.BytesIO(file)) as image:
        return image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)


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
