"""The former name of `fair_lock`, which pickles of then have."""

from .fair_lock import FairLock as Turn

__all__ = ["Turn"]
