"""Callbacks: actions while a training runs, in our estimators and in scikit-learn's."""

from .base import Callback
from .checkpoint import Checkpoint
from .csv_logger import CSVLogger
from .early_stopping import EarlyStopping
from .gradient_monitor import GradientMonitor
from .learning_rate_finder import LearningRateFinder, LearningRateSweep, find_learning_rate
from .mlflow import MLflow
from .progress_bar import ProgressBar
from .reduce_on_plateau import ReduceOnPlateau
from .tensorboard import TensorBoard
from .timer import Timer

__all__ = ["CSVLogger", "Callback", "Checkpoint", "EarlyStopping", "GradientMonitor", "LearningRateFinder",
           "LearningRateSweep", "MLflow", "ProgressBar", "ReduceOnPlateau", "TensorBoard", "Timer",
           "find_learning_rate"]
