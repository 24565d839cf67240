"""Pictures of a training: losses, learning rates, weights and gradients, and the graph."""

from .curve import draw_curve
from .figure import save_figure
from .graph import plot_graph
from .histograms import plot_histograms
from .losses import plot_losses
from .metrics import plot_metrics
from .rate_finder import plot_learning_rate_finder

__all__ = ["draw_curve", "plot_graph", "plot_histograms", "plot_learning_rate_finder", "plot_losses", "plot_metrics",
           "save_figure"]
