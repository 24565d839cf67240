"""Each test draws the same numbers, whichever tests ran before it."""

import numpy as np
import pytest
from ml_nodes import RNG


@pytest.fixture(autouse=True)
def same_numbers():
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state
