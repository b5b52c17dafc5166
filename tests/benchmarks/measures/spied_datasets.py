"""Datasets whose profiles are compared with py-spy's: pure Python, NumPy, Pillow, sleeping; small functions only."""

from __future__ import annotations

import io
import time
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import Dataset

LENGTH = 10**9
Floats = npt.NDArray[np.float32]
TEXT = "the penstock carries water from the forebay to the turbine and the gate decides how much of it runs"
WORDS = TEXT.split()


class Python(Dataset[int]):
    """Text to numbers: loops, dictionaries, and functions that call functions."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        text = compose(index)
        pieces = [piece for word in text.split() for piece in split(normal(word))]
        return score(pairs(pieces)) + checksum(text)


def compose(index: int) -> str:
    chosen = []
    for place in range(120):
        chosen.append(WORDS[(index * 31 + place * 7) % len(WORDS)])
    return " ".join(chosen)


def normal(word: str) -> str:
    letters = []
    for letter in word:
        if letter.isalpha():
            letters.append(letter.lower())
    return "".join(letters)


def split(word: str) -> list[str]:
    pieces = []
    while word:
        pieces.append(word[:3])
        word = word[3:]
    return pieces


def pairs(pieces: list[str]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for before, after in pairwise(pieces):
        found[before, after] = found.get((before, after), 0) + 1
    return found


def score(found: dict[tuple[str, str], int]) -> int:
    total = 0
    for (before, after), times in sorted(found.items()):
        total += times * (ord(before[0]) ^ ord(after[0]))
    return total


def checksum(text: str) -> int:
    value = 7
    for letter in text:
        value = (value * 31 + ord(letter)) % 1_000_003
    return value


class Small(Dataset[int]):
    """Loops that call functions with neither loop nor call: what a look from inside sees least exactly."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        value = index
        for _ in range(3000):
            value = mix(value)
            value = fold(value)
        return value


def mix(value: int) -> int:
    value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    value ^= value >> 7
    return (value ^ (value << 9)) & 0x7FFFFFFF


def fold(value: int) -> int:
    return (value & 0xFFFF) ^ (value >> 16)


class Arrays(Dataset[float]):
    """NumPy: a few large operations, some of which hold the interpreter lock throughout."""

    def __init__(self) -> None:
        self.image = np.random.default_rng(0).random((256, 256, 3), dtype=np.float32)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> float:
        image = turned(self.image, index)
        return float(ranked(whitened(image)) + blurred(image).sum() + spectrum(image))


def turned(image: Floats, index: int) -> Floats:
    return np.ascontiguousarray(np.rot90(image, index % 4))


def whitened(image: Floats) -> Floats:
    white: Floats = (image - image.mean((0, 1))) / image.std((0, 1))
    return white


def blurred(image: Floats) -> Floats:
    mean: Floats = (image[1:-1] + image[:-2] + image[2:]) / np.float32(3)
    return mean


def ranked(image: Floats) -> float:
    return float(np.sort(image[..., 0], axis=None)[100])


def spectrum(image: Floats) -> float:
    return float(np.abs(np.fft.rfft2(image[..., 1])).max())


class Pictures(Dataset[int]):
    """Pillow: decode, resize, filter, turn."""

    def __init__(self) -> None:
        noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((800, 600), Image.Resampling.BICUBIC).save(file, "JPEG")
        self.file = file.getvalue()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        picture = smaller(decoded(self.file))
        return len(stretched(blurry(picture)).tobytes()) + index % 2


def decoded(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file)).convert("RGB")


def smaller(picture: Image.Image) -> Image.Image:
    return picture.resize((224, 224), Image.Resampling.BILINEAR)


def blurry(picture: Image.Image) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(2))


def stretched(picture: Image.Image) -> Image.Image:
    return ImageOps.autocontrast(picture)


class Sleeping(Dataset[int]):
    """Waits, as for storage, in three functions."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        opened()
        read()
        closed()
        return index


def opened() -> None:
    time.sleep(0.002)


def read() -> None:
    time.sleep(0.006)


def closed() -> None:
    time.sleep(0.001)
