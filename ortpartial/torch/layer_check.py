"""Check of a layer: outputs and gradients as torch gets them, beside the graph as it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ortpartial.training import RewriteCheck, differentiate_written

from .autograd import TensorFunction
from .layer_function import LayerFunction
from .tensor_session import Placement

__all__ = ["LayerCheck"]


@dataclass(frozen=True)
class LayerCheck:
    """A check of a compiled layer, to be made at its first call.

    Parameters
    ----------
    make : callable
        Makes the function of the layer, as `make_layer_function` does, of the keywords `dtype` and `is_rewritten`.
    placement : Placement
        Where it runs.
    engine : str
        How it is differentiated.
    """

    make: partial[LayerFunction]
    placement: Placement
    engine: str

    def __call__(self, leaves: Sequence[torch.Tensor]) -> None:
        """Compare outputs and gradients at these leaves, with random cotangents.

        Parameters
        ----------
        leaves : sequence of torch.Tensor
            Inputs, initializers and masks.

        Raises
        ------
        RewriteError
            They differ; the message names the tensor and the rewrite without which they do not.
        """
        written = self.make(is_rewritten=False).function
        feeds = {n: t.detach().cpu().numpy() for n, t in zip(written.leaves, leaves, strict=True)}
        wanted = [n for n, v in written.leaves.items() if v.is_float]
        rng, shapes = np.random.default_rng(0), self._shapes(leaves)
        cotangents = {n: rng.normal(size=shapes[n]).astype(written.outputs[n].dtype) for n in written.seeds}
        numbers, tolerances = differentiate_written(
            written, lambda: self.make(is_rewritten=False, dtype="float64").function, wanted, feeds, cotangents)
        others = {e: partial(self._run, e, leaves, wanted, cotangents) for e in (self.engine, "step")}
        RewriteCheck("A call of the layer", others[self.engine], numbers, tolerances, others["step"])()

    def _shapes(self, leaves: Sequence[torch.Tensor]) -> dict[str, tuple[int, ...]]:
        """The shapes of the outputs."""
        function = TensorFunction(self.make().function, self.placement)
        outputs = function.run([t.detach() for t in leaves])
        return {n: tuple(y.shape) for n, y in zip(function.function.outputs, outputs, strict=True)}

    def _run(self, engine: str, leaves: Sequence[torch.Tensor], wanted: Sequence[str],
             cotangents: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs and gradients, compiled anew, by the names that `differentiate_written` gives them."""
        function = TensorFunction(self.make().function, self.placement, engine)
        names = list(function.function.leaves)
        fresh = [t.detach().requires_grad_(n in wanted) for n, t in zip(names, leaves, strict=True)]
        with torch.enable_grad():
            outputs = dict(zip(function.function.outputs, function(fresh), strict=True))
        dys = [torch.from_numpy(a).to(outputs[n].device) for n, a in cotangents.items()]
        by = [t for n, t in zip(names, fresh, strict=True) if n in wanted]
        gradients = torch.autograd.grad([outputs[n] for n in cotangents], by, dys, allow_unused=True)
        results = {f"the output {n!r}": y for n, y in outputs.items()}
        results |= {f"the gradient by {n!r}": torch.zeros_like(t) if g is None else g
                    for n, t, g in zip(wanted, by, gradients, strict=True)}
        return {n: t.detach().cpu().numpy() for n, t in results.items()}
