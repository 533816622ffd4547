"""What all tests share: one thread (the problems are tiny), and where the real data lies, if anywhere."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


def _real_data() -> Path | None:
    candidates = [os.environ.get("PROXSKIP_DATA"), Path(__file__).parents[2] / "shared" / "data"]
    return next((Path(candidate) for candidate in candidates if candidate and Path(candidate).is_dir()), None)


@pytest.fixture(scope="session")
def real_data() -> Path:
    folder = _real_data()
    if folder is None:
        pytest.skip("no folder with real data sets: set PROXSKIP_DATA")
    return folder
