"""Small data sets in the very formats of the real ones: `write_NAME` for the task NAME, found by its name."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def write_blogfeedback(folder: Path, blogs: int = 4, rows_a_blog: int = 6) -> None:
    generator = np.random.default_rng(0)

    def rows(count: int, blog: int) -> np.ndarray:
        own = np.full((count, 50), float(blog))
        posts = generator.uniform(0, 10, (count, 230))
        return np.round(np.hstack([own, posts, posts[:, :1] * 3 + blog]), 3)

    train = np.vstack([rows(rows_a_blog + blog, blog) for blog in range(blogs)])
    with zipfile.ZipFile(folder / "BlogFeedback.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("blogData_train.csv", _csv(train))
        for day in ("01", "02"):
            archive.writestr(f"blogData_test-2012.02.{day}.00_00.csv", _csv(rows(5, 1)))


def _csv(rows: np.ndarray) -> str:
    return "\n".join(",".join(str(number) for number in row) for row in rows) + "\n"


def write_femnist(folder: Path, writers: int = 5, images_each: int = 12) -> None:
    generator = np.random.default_rng(0)
    count = writers * images_each
    np.savez(
        folder / "mnist_writers.npz",
        X_train=generator.integers(0, 256, (count, 28, 28), dtype=np.uint8),
        y_train=np.arange(count, dtype=np.uint8) % 10,
        writer_train=np.repeat(np.arange(100, 100 + writers), images_each),
        X_test=generator.integers(0, 256, (20, 28, 28), dtype=np.uint8),
        y_test=np.arange(20, dtype=np.uint8) % 10,
        writer_test=np.full(20, 7),
    )


def write_leaf(folder: Path, users: int = 4, images_each: int = 6) -> None:
    generator = np.random.default_rng(0)
    for part in ("train", "test"):
        (folder / "femnist" / part).mkdir(parents=True)
        for half in range(2):
            names = [f"f{user:04d}_07" for user in range(half, users, 2)]
            data = {
                name: {
                    "x": generator.uniform(0, 1, (images_each, 784)).tolist(),
                    "y": [int(label) for label in (np.arange(images_each) * 7) % 62],
                }
                for name in names
            }
            content = {"users": names, "num_samples": [images_each] * len(names), "user_data": data}
            path = folder / "femnist" / part / f"all_data_{half}_niid_0_keep_0_{part}_9.json"
            path.write_text(json.dumps(content), encoding="utf-8")


def write_cifar10(folder: Path, images_a_class: int = 8) -> None:
    generator = np.random.default_rng(0)
    with tarfile.open(folder / "cifar10-jpeg.tar.xz", "w:xz") as archive:
        for part in ("train", "test"):
            for number, label in enumerate(CIFAR_CLASSES):
                for index in range(images_a_class):
                    pixels = generator.integers(0, 100, (32, 32, 3), dtype=np.uint8)
                    pixels[..., number % 3] += np.uint8(15 * number)
                    buffer = io.BytesIO()
                    Image.fromarray(pixels).save(buffer, "JPEG")
                    member = tarfile.TarInfo(f"{part}/{label}/{index:04d}.jpg")
                    member.size = buffer.tell()
                    buffer.seek(0)
                    archive.addfile(member, buffer)


def write_tabular(folder: Path, clients: int = 4, rows_each: int = 12) -> None:
    """Write a CSV, an npz and a Parquet file, and a folder of two CSV files."""
    import pyarrow
    from pyarrow import parquet

    generator = np.random.default_rng(0)
    for client in range(clients):
        age = generator.integers(18, 90, rows_each)
        smoker = generator.choice(["no", "yes"], rows_each)
        cost = 10.0 * age + 500 * (smoker == "yes") + 20 * client
        path = folder / f"clinic-{client}"
        match client % 4:
            case 0:
                _write_table(path.with_suffix(".csv"), age, smoker, cost)
            case 1:
                np.savez(path.with_suffix(".npz"), age=age, smoker=smoker, cost=cost)
            case 2:
                parquet.write_table(
                    pyarrow.table({"age": age, "smoker": smoker, "cost": cost}), path.with_suffix(".parquet")
                )
            case 3:
                path.mkdir()
                half = rows_each // 2
                _write_table(path / "a.csv", age[:half], smoker[:half], cost[:half])
                _write_table(path / "b.csv", age[half:], smoker[half:], cost[half:])


def _write_table(path: Path, age: np.ndarray, smoker: np.ndarray, cost: np.ndarray) -> None:
    lines = [f"{one},{two},ignored,{three}" for one, two, three in zip(age, smoker, cost, strict=True)]
    path.write_text("\n".join(["age,smoker,remark,cost", *lines]) + "\n")


def write_image_folder(folder: Path, clients: int = 4, images_each: int = 5) -> None:
    """Write CLASS/NUMBER.jpg for each client; the last one has no dogs."""
    generator = np.random.default_rng(0)
    for client in range(clients):
        for label in ("cat",) if client == clients - 1 else ("cat", "dog"):
            own = folder / f"shelter-{client}" / label
            own.mkdir(parents=True)
            for number in range(images_each):
                pixels = generator.integers(0, 256, (40, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(own / f"{number}.jpg")
