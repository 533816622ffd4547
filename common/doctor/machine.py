"""Checks of any machine that one of our programs is to run on; to add one, write a function and put it into CHECKS.

Heavy libraries are imported inside the checks: where one is broken, that is a finding.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from common.doctor.findings import Check, Finding, ok, problem, warning
from common.messages.flower import APP_NAME

SHOWN = ("flwr", "torch", "torchvision", "click")
IMPORTED = {"torch": "torch", "torchvision": "common.learning.vision", "flwr": "flwr.app"}  # as we import them
REINSTALL = f"pip install --upgrade --force-reinstall {APP_NAME}"
MEGABYTE = 1e6
LEAST_MEMORY_MB = 700  # what a program takes with torch and Flower, and a small model
LEAST_DISK_MB = 100
LITTLE_DISK_MB = 1_000
SLOW_DISK_SECONDS = 0.1
WRITES = 5
WRITTEN_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What there is to check on any machine."""

    folder: Path  # where the program is to write
    device: str = "auto"

    @property
    def writes_to(self) -> Path:
        """Return the folder, or the nearest one above it that is there already."""
        return next(one for one in (self.folder.absolute(), *self.folder.absolute().parents) if one.is_dir())


def python(_: Machine) -> Finding:
    """Find whether this Python is new enough."""
    needed, version = metadata.metadata(APP_NAME)["Requires-Python"], platform.python_version()
    if not SpecifierSet(needed).contains(version):
        return problem(f"Python {version}, where {needed} is needed", "make an environment with another Python")
    return ok(f"Python {version}")


def packages(_: Machine) -> Finding:
    """Find whether all packages are here, in versions that go together."""
    wrong = [complaint for text in metadata.requires(APP_NAME) or [] if (complaint := _complaint(Requirement(text)))]
    if wrong:
        return problem("; ".join(wrong), REINSTALL)
    return ok(", ".join(f"{name} {metadata.version(name)}" for name in SHOWN))


def _complaint(needed: Requirement) -> str:
    if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
        return ""
    try:
        version = metadata.version(needed.name)
    except metadata.PackageNotFoundError:
        return f"{needed.name} is not installed"
    fits = needed.specifier.contains(version, prereleases=True)
    return "" if fits else f"{needed.name} is {version}, where {needed.specifier} is needed"


def libraries(_: Machine) -> Finding:
    """Find whether the large libraries can be loaded."""
    for name, module in IMPORTED.items():
        try:
            importlib.import_module(module)
        except Exception as error:  # such as a torchvision that is for another torch
            return problem(f"{name} cannot be imported: {error}", REINSTALL)
    return ok(f"{', '.join(IMPORTED)} can be imported")


def device(machine: Machine) -> Finding:
    """Find where the program will compute."""
    import torch

    from common.program.device import choose_device, describe_device

    chosen = choose_device(machine.device)
    if chosen.type == "cuda":
        return ok(describe_device(chosen))
    if machine.device == "auto" and shutil.which("nvidia-smi"):
        found = f"{chosen}, though there is an NVIDIA driver: torch {torch.__version__} cannot use it"
        return warning(found, "install the torch that pytorch.org names for this CUDA, or a newer driver")
    if machine.device == "auto" and torch.backends.mps.is_available():
        return ok(f"{chosen}; this Mac's GPU is used with --device mps")
    return ok(str(chosen))


def threads(_: Machine) -> Finding:
    """Find whether there is a core for every thread."""
    import torch

    used, cores = torch.get_num_threads(), _cores()
    if used > cores:
        return warning(f"{used} threads would share {cores} cores", f"set OMP_NUM_THREADS={max(1, int(cores))}")
    return ok(f"{used} threads, {cores:g} cores")


def _cores() -> float:
    """Return how many cores this process may use; a container may have a part of one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _first_line(Path("/sys/fs/cgroup/cpu.max")).partition(" ")
    return min(cores, int(quota) / int(period)) if quota.isdecimal() else cores


def memory(_: Machine) -> Finding:
    """Find whether there is memory for the program and a small model."""
    free_mb = _available_bytes() / MEGABYTE
    if free_mb < LEAST_MEMORY_MB:
        remedy = f"a program alone takes up to {LEAST_MEMORY_MB} MB: end others, or add swap"
        return warning(f"{free_mb:.0f} MB are free", remedy)
    return ok(f"{free_mb:.0f} MB are free")


def _available_bytes() -> float:
    """Return the memory that can still be taken; a container may have less than its machine."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    available = float(page_bytes * os.sysconf("SC_PHYS_PAGES"))  # all there is, where nothing else is known
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            available = 1024.0 * int(line.split()[1])
    limit = _first_line(Path("/sys/fs/cgroup/memory.max"))
    if limit.isdecimal():
        available = min(available, int(limit) - int(_first_line(Path("/sys/fs/cgroup/memory.current")) or 0))
    return available


def disk_space(machine: Machine) -> Finding:
    """Find whether there is room for what the program writes."""
    free_mb = shutil.disk_usage(machine.writes_to).free / MEGABYTE
    found = f"{free_mb:.0f} MB are free for {machine.folder}"
    if free_mb < LEAST_DISK_MB:
        return problem(found, "make room: a program whose disk is full waits until there is some")
    if free_mb < LITTLE_DISK_MB:
        return warning(found, "make room, unless the model is small")
    return ok(found)


def disk_speed(machine: Machine) -> Finding:
    """Find how long it takes until something is really on the disk."""
    try:
        seconds = statistics.median(_written_seconds(machine.writes_to) for _ in range(WRITES))
    except OSError as error:
        return problem(f"cannot write to {machine.writes_to}: {error.strerror}", "name another folder, or its owner")
    found = f"{1000 * seconds:.1f} ms until 4 kB are on the disk"
    if seconds > SLOW_DISK_SECONDS:
        return warning(found, "each round waits for the disk, here and on every client: take a faster one")
    return ok(found)


def _written_seconds(folder: Path) -> float:
    with tempfile.TemporaryFile(dir=folder) as file:
        started = time.perf_counter()
        file.write(bytes(WRITTEN_BYTES))
        file.flush()
        os.fsync(file.fileno())
        return time.perf_counter() - started


def clock(_: Machine) -> Finding:
    """Find whether it is later than when this program was installed."""
    now = datetime.now(UTC)
    installed = datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC)
    if now < installed:
        found = f"{now:%Y-%m-%d %H:%M} UTC, which is before this program was installed ({installed:%Y-%m-%d})"
        return problem(found, "set the clock, such as with timedatectl: certificates expire by it")
    return ok(f"{now:%Y-%m-%d %H:%M} UTC")


def _first_line(path: Path) -> str:
    return next(iter(_lines(path)), "")


def _lines(path: Path) -> list[str]:
    """Return what the system tells in a file; nothing where it has no such file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


CHECKS: tuple[Check[Machine], ...] = (
    python,
    packages,
    libraries,
    device,
    threads,
    memory,
    disk_space,
    disk_speed,
    clock,
)
