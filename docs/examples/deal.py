"""Make folders of clients out of public data: python deal.py pictures|blogs|reviews ARCHIVE FOLDER.

The clients of `blogs` and `reviews` are those that the data comes from; pictures are dealt out, some kinds more to one
than to another.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tarfile
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np

SITES = 5
PICTURES_A_KIND = {"train": 600, "test": 150}
CONCENTRATION = 0.5  # of the Dirichlet distribution by which a kind of pictures is spread over sites

BLOGS = 8  # those with the most posts
COLUMNS_OF_A_BLOG = 50  # statistics of the blog itself, the same in each of its posts

RATED = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
SOURCES = {
    "films": "movieReviewSnippets",
    "newspaper": "nytEditorialSnippets",
    "shop": "amazonReviewSnippets",
    "tweets": "tweets",
}
CLEAR_RATING = 1.0  # of -4 to 4: what people find neither good nor bad is left out
TEST_FRACTION = 0.2


def pictures(archive: Path, folder: Path) -> None:
    """Deal some of CIFAR-10 out: cifar10-jpeg.tar.xz has PART/KIND/NUMBER.jpg."""
    generator = np.random.default_rng(0)
    shares: dict[str, np.ndarray] = {}
    left: defaultdict[tuple[str, str], int] = defaultdict(int)
    with tarfile.open(archive) as members:
        for member in members:
            if not member.name.endswith(".jpg"):
                continue
            part, kind, number = Path(member.name).parts[-3:]
            if kind not in shares:
                shares[kind] = generator.dirichlet(np.full(SITES, CONCENTRATION))
                _make_folders(folder, kind)
            if left[part, kind] < PICTURES_A_KIND[part]:
                left[part, kind] += 1
                site = folder / f"site-{generator.choice(SITES, p=shares[kind])}"
                _write(site / part / kind / number, _content(members, member.name))


def _make_folders(folder: Path, kind: str) -> None:
    """Make a kind's folders at all sites, also where they stay empty: ImageFolder numbers what it finds."""
    for site in range(SITES):
        for part in PICTURES_A_KIND:
            (folder / f"site-{site}" / part / kind).mkdir(parents=True)


def blogs(archive: Path, folder: Path) -> None:
    """Give each of the largest blogs in BlogFeedback.zip its own posts."""
    posts: defaultdict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    with zipfile.ZipFile(archive) as members, members.open("blogData_train.csv") as file:
        for row in csv.reader(io.TextIOWrapper(file)):
            posts[tuple(row[:COLUMNS_OF_A_BLOG])].append(row)
    largest = sorted(posts.values(), key=len, reverse=True)[:BLOGS]
    for number, rows in enumerate(largest):
        _write(folder / f"blog-{number}.csv", "".join(f"{','.join(row)}\n" for row in rows).encode())


def reviews(archive: Path, folder: Path) -> None:
    """Give each source of vaderSentiment-0.5.zip the sentences that people have rated as clearly good or bad."""
    generator = np.random.default_rng(0)
    with (
        zipfile.ZipFile(archive) as members,
        tarfile.open(fileobj=io.BytesIO(members.read(RATED))) as rated,
    ):
        for source, name in SOURCES.items():
            text = _content(rated, f"hutto_ICWSM_2014/{name}_GroundTruth.txt").decode(errors="replace")
            parts: dict[str, list[str]] = {"train": [], "test": []}
            for line in text.splitlines():
                _, rating, sentence = line.split("\t", 2)
                if abs(float(rating)) >= CLEAR_RATING:
                    part = "test" if generator.random() < TEST_FRACTION else "train"
                    parts[part].append(json.dumps({"text": sentence, "is_good": float(rating) > 0}))
            for part, lines in parts.items():
                _write(folder / source / f"{part}.jsonl", "".join(f"{line}\n" for line in lines).encode())


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    kind, archive, folder = sys.argv[1:]
    {"pictures": pictures, "blogs": blogs, "reviews": reviews}[kind](Path(archive), Path(folder))
