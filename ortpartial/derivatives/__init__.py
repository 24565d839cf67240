"""Derivatives of models as models: forward mode, Jacobians, Hessians, their products, and batches."""

from .batching import list_loops, vmap
from .models import differentiate, hessian_model, hvp_model, jacobian_model, jvp_model, vmap_model

__all__ = ["differentiate", "hessian_model", "hvp_model", "jacobian_model", "jvp_model", "list_loops", "vmap",
           "vmap_model"]
