"""What all tests share: one thread (the problems are tiny), a quiet Flower, where the real data lies, if anywhere."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from common.messages.flower import quiet_flower

torch.set_num_threads(1)
settings.register_profile("whatever the machine", deadline=None)  # a test asserts no time
settings.load_profile("whatever the machine")
quiet_flower()  # what it logs would be kept for the reports of tests
os.environ["OMP_NUM_THREADS"] = "1"  # the processes that tests start share the cores with the other test workers


@pytest.fixture(scope="session")
def real_data() -> Path:
    folder = os.environ.get("PROXSKIP_DATA")
    if not folder:
        pytest.skip("no folder with real data sets: set PROXSKIP_DATA")
    return Path(folder)
