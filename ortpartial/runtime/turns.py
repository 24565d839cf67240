"""The former name of `fair_lock`, which pickles of version 0.2 and before have."""

from .fair_lock import FairLock as Turn

__all__ = ["Turn"]
