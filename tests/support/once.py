"""Marks of tests that `make test` runs on one of the two runtimes, as what they prove is the same on both.

`make proof` runs them on both.
"""

import pytest

from ortpartial.runtime.device import has_training

#: On onnxruntime-training alone.
ON_TRAINING = pytest.mark.proof if has_training() else pytest.mark.slow
#: On the newest onnxruntime alone.
ON_NEWEST = pytest.mark.slow if has_training() else pytest.mark.proof
