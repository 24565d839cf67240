"""Which of the two runtimes a test runs on in `make test`; `make proof` runs it on both.

Without a mark a test runs on one of them, that of its group: `groups.py`.
"""

import pytest

from ortpartial.runtime.device import has_training

#: On onnxruntime-training alone.
ON_TRAINING = pytest.mark.proof if has_training() else pytest.mark.slow
#: On the newest onnxruntime alone.
ON_NEWEST = pytest.mark.slow if has_training() else pytest.mark.proof
#: On both: what the test proves differs between them, or it may be skipped on one.
ON_BOTH = pytest.mark.both
