"""A client takes little more memory than the training itself."""

from __future__ import annotations

import sys

import pytest

from bench import memory


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_client_takes_four_models_at_most_beyond_bare_training() -> None:
    (beyond,) = memory.run()
    assert beyond.value > 1  # its control at least, or nothing was measured
    assert beyond.holds
