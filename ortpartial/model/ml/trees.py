"""Ensembles of trees of ai.onnx.ml: sums of the leaves that are reached, whose values are weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ortpartial.annotations import Attributes, Settings
from ortpartial.graph import Operators, Value, constant, op

from .operator import Arrays, MlOperator, post_transform, to_labels

__all__ = ["TREES"]

_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")  # as TreeEnsemble 5 numbers them
_AVERAGE, _SUM = 0, 1

#: Whole numbers below this are floats without rounding.
_EXACT = {np.dtype(np.float16): 2**11, np.dtype(np.float32): 2**24, np.dtype(np.float64): 2**24}


# -- TreeEnsembleRegressor and TreeEnsembleClassifier


@dataclass(frozen=True)
class _Ensemble:
    """The leaves of a TreeEnsembleRegressor or TreeEnsembleClassifier.

    Parameters
    ----------
    kind : str
        The prefix of attributes of leaves, "target" or "class".
    leaf_trees, leaf_nodes : numpy.ndarray
        Tree and node of each leaf, (leaves,).
    trees : numpy.ndarray
        The number of the tree that each leaf is in, counted from 0, (leaves,).
    rows, columns : numpy.ndarray
        The leaf and the target of each weight that is stored, (weights,).
    width : int
        Number of targets.
    """

    kind: str
    leaf_trees: np.ndarray
    leaf_nodes: np.ndarray
    trees: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    width: int

    @classmethod
    def of(cls, attributes: Attributes) -> _Ensemble | None:
        """The ensemble of a node; None where it is not supported."""
        kind = "target" if "n_targets" in attributes else "class"
        needed = ("nodes_treeids", "nodes_nodeids", f"{kind}_treeids", f"{kind}_nodeids", f"{kind}_ids")
        if any(not attributes.get(n) for n in needed) or attributes.get("aggregate_function", "SUM") not in (
                "SUM", "AVERAGE"):
            return None
        tree_ids, node_ids, weight_trees, weight_nodes, columns = (np.array(attributes[n]) for n in needed)
        is_leaf = np.array([mode == "LEAF" for mode in attributes["nodes_modes"]])
        leaf_trees, leaf_nodes = tree_ids[is_leaf], node_ids[is_leaf]
        place = {leaf: i for i, leaf in enumerate(zip(leaf_trees.tolist(), leaf_nodes.tolist(), strict=True))}
        stored = zip(weight_trees.tolist(), weight_nodes.tolist(), strict=True)
        rows = np.array([place.get(leaf, -1) for leaf in stored])
        width = attributes.get("n_targets") or _count_classes(attributes)
        if _is_binary(attributes):
            width = 1
        if rows.min() < 0 or not 0 <= columns.min() <= columns.max() < width or len(place) >= 2**24:
            return None
        if len(place) * width > max(2**24, 4 * len(rows)):
            return None  # Most leaves have no weight for most targets, and would get weights.
        trees = np.unique(leaf_trees, return_inverse=True)[1]
        return cls(kind, leaf_trees, leaf_nodes, trees, rows, columns, width)

    @property
    def every_place(self) -> np.ndarray:
        """The places of the stored weights among all that there may be."""
        return self.rows * self.width + self.columns

    def covers_targets(self) -> bool:
        """Whether every row reaches a weight of every target."""
        counts = np.zeros((self.trees.max() + 1, self.width), int)
        stored = np.unique(self.every_place)
        np.add.at(counts, (self.trees[stored // self.width], stored % self.width), 1)
        return bool((counts == np.bincount(self.trees)[:, None]).any(axis=0).all())


def _count_classes(attributes: Attributes) -> int:
    return len(attributes.get("classlabels_int64s") or attributes.get("classlabels_strings") or ())


def _is_binary(attributes: Attributes) -> bool:
    """Whether a single score decides between two classes."""
    return _count_classes(attributes) == 2 and set(attributes["class_ids"]) == {0}


def _read_floats(attributes: Attributes, name: str) -> np.ndarray:
    """Floats, or doubles, which an attribute of another name holds from version 3 on."""
    if (doubles := attributes.get(f"{name}_as_tensor")) is not None and doubles.size:
        return np.asarray(doubles)
    return np.asarray(attributes.get(name, ()), np.float32)


def _write_floats(attributes: Attributes, name: str, values: np.ndarray) -> Settings:
    """The attribute that holds floats in a node with these attributes."""
    doubles = attributes.get("nodes_values_as_tensor")
    if doubles is not None and doubles.size:
        return {f"{name}_as_tensor": numpy_helper.from_array(values.astype(doubles.dtype))}
    return {name: values.astype(np.float32).tolist()}


def _read(attributes: Attributes) -> dict[str, np.ndarray] | None:
    """The values of all leaves (leaves, targets), and `base_values` where there are any."""
    ensemble = _Ensemble.of(attributes)
    if ensemble is None:
        return None
    values = _read_floats(attributes, f"{ensemble.kind}_weights")
    if len(values) != len(ensemble.rows):
        raise ValueError(f"there are {len(values)} weights for {len(ensemble.rows)} places")
    leaves = np.zeros((len(ensemble.trees), ensemble.width), np.float32)
    np.add.at(leaves, (ensemble.rows, ensemble.columns), values)
    base = _read_floats(attributes, "base_values").astype(np.float32)
    if len(base) not in (0, ensemble.width):
        return None
    return {"leaves": leaves, "base_values": base} if len(base) else {"leaves": leaves}


def _read_regressor(attributes: Attributes) -> dict[str, np.ndarray] | None:
    """The weights, unless onnxruntime leaves base values out where a row reaches no weight of a target."""
    arrays, ensemble = _read(attributes), _Ensemble.of(attributes)
    if arrays is None or ensemble is None:
        return None
    return arrays if "base_values" not in arrays or ensemble.covers_targets() else None


def _read_classifier(attributes: Attributes) -> dict[str, np.ndarray] | None:
    """The weights, unless onnxruntime's own rules decide about labels."""
    arrays = _read(attributes)
    transform, ensemble = attributes["post_transform"], _Ensemble.of(attributes)
    if arrays is None or ensemble is None:
        return None
    if ensemble.width == 1:  # Versions of onnxruntime differ in these.
        return None if transform == "PROBIT" or (transform == "LOGISTIC" and _is_positive(attributes)) else arrays
    is_usual = "base_values" in arrays or ensemble.covers_targets() or _is_positive(attributes)
    return arrays if ensemble.width > 2 and is_usual else None


def _is_positive(attributes: Attributes) -> bool:
    """Whether no weight is negative: then a binary score is the probability of the second class."""
    return bool((_read_floats(attributes, "class_weights") >= 0).all())


def _find_leaves(ensemble: _Ensemble, attributes: Attributes, x: Value) -> Value:
    """The leaf that each row reaches in each tree, (N, trees): the result of trees whose weights are leaf numbers."""
    kept = {n: a for n, a in attributes.items() if n.startswith("nodes_")}
    numbers = _write_floats(attributes, "target_weights", np.arange(len(ensemble.trees)))
    numbers = {n: numpy_helper.to_array(a) if isinstance(a, TensorProto) else a for n, a in numbers.items()}
    y = Operators("ai.onnx.ml", min(attributes["version"], 4)).TreeEnsembleRegressor(
        x, **kept, **numbers, n_targets=int(ensemble.trees.max()) + 1, target_ids=ensemble.trees.tolist(),
        target_nodeids=ensemble.leaf_nodes.tolist(), target_treeids=ensemble.leaf_trees.tolist())
    return _shape(y, x, int(ensemble.trees.max()) + 1)


def _shape(numbers: Value, x: Value, trees: int) -> Value:
    """Numbers of leaves, (N, trees), as integers: onnx infers no shape for trees."""
    return op.Reshape(op.Cast(numbers, to=TensorProto.INT64), op.Concat(op.Shape(x, end=1), [trees], axis=0))


def _sum_leaves(attributes: Attributes, x: Value, weights: Mapping[str, Value]) -> Value:
    """The scores, Σ leaf + base, (N, targets)."""
    ensemble = _Ensemble.of(attributes)
    assert ensemble is not None
    scores = op.ReduceSum(op.Gather(weights["leaves"], _find_leaves(ensemble, attributes, x)), [1], keepdims=0)
    if attributes.get("aggregate_function") == "AVERAGE":
        scores = scores / float(ensemble.trees.max() + 1)
    return scores + weights["base_values"] if "base_values" in weights else scores


def _regress(attributes: Attributes, inputs: Sequence[Value], weights: Mapping[str, Value]) -> list[Value]:
    scores = _sum_leaves(attributes, inputs[0], weights)
    return [post_transform(scores, attributes["post_transform"], attributes["n_targets"])]


def _classify(attributes: Attributes, inputs: Sequence[Value], weights: Mapping[str, Value]) -> list[Value]:
    """The label, and a score for each class; of two classes, the score of the second decides, as in onnxruntime."""
    scores = _sum_leaves(attributes, inputs[0], weights)
    if not _is_binary(attributes):
        label = to_labels(attributes, op.ArgMax(scores, axis=1, keepdims=0))
        return [label, post_transform(scores, attributes["post_transform"], _count_classes(attributes))]
    is_positive = _is_positive(attributes)
    second = op.Cast(op.Squeeze(scores, [1]) > (0.5 if is_positive else 0.0), to=TensorProto.INT64)
    both = op.Concat(1 - scores if is_positive else -scores, scores, axis=1)
    is_logistic = attributes["post_transform"] == "LOGISTIC"
    return [to_labels(attributes, second), op.Sigmoid(both) if is_logistic else both]


def _write(attributes: Attributes, arrays: Arrays) -> Settings:
    """The weights of leaves where they stood; for all leaves and targets, if others have become other than 0."""
    ensemble = _Ensemble.of(attributes)
    assert ensemble is not None
    kind = ensemble.kind
    written: Settings = {}
    if "base_values" in arrays:
        written |= _write_floats(attributes, "base_values", arrays["base_values"])
    if "leaves" not in arrays:
        return written
    leaves, places = arrays["leaves"].ravel(), ensemble.every_place
    others = np.delete(leaves, places)
    is_complete = not others.any() and len(np.unique(places)) == len(places)
    if not is_complete or (kind == "class" and not ensemble.covers_targets()):
        places = np.arange(len(leaves))
        rows = places // ensemble.width
        written |= {f"{kind}_treeids": ensemble.leaf_trees[rows].tolist(),
                    f"{kind}_nodeids": ensemble.leaf_nodes[rows].tolist(),
                    f"{kind}_ids": (places % ensemble.width).tolist()}
    return written | _write_floats(attributes, f"{kind}_weights", leaves[places])


def _write_classifier(attributes: Attributes, arrays: Arrays) -> Settings:
    """The weights; a binary score keeps negative weights if it had them, since they decide about its meaning."""
    former, ensemble = _read(attributes) or {}, _Ensemble.of(attributes)
    assert ensemble is not None
    if ensemble.width > 1 or "leaves" not in arrays:
        return _write(attributes, arrays)
    leaves = arrays["leaves"]
    base = {**former, **arrays}.get("base_values", np.zeros(1, np.float32))
    shifts = np.zeros((ensemble.trees.max() + 1, 1), np.float32)
    if _is_positive(attributes):
        np.maximum.at(shifts, ensemble.trees, -leaves)
    elif leaves.min() >= 0:
        shifts[0] = -1 - leaves[ensemble.trees == 0].min()
    if not shifts.any():
        return _write(attributes, arrays)
    return _write(attributes, {"leaves": leaves + shifts[ensemble.trees], "base_values": base - shifts.sum()})


def _keep_type(attributes: Attributes, elem_type: int) -> int:
    """The dtype to which values are rounded before they are compared with thresholds: none."""
    return 0


# -- TreeEnsemble


def _find_trees(attributes: Attributes) -> np.ndarray | None:
    """The tree that each leaf of a TreeEnsemble is in, (leaves,); None where a leaf is in several, or in none."""
    branches = [(attributes["nodes_truenodeids"], attributes["nodes_trueleafs"]),
                (attributes["nodes_falsenodeids"], attributes["nodes_falseleafs"])]
    trees = np.full(len(attributes["leaf_targetids"]), -1)
    for tree, root in enumerate(attributes["tree_roots"]):
        waiting, visited = [root], set()
        while waiting:
            node = waiting.pop()
            if node in visited:
                continue
            visited.add(node)
            for ids, is_leaf in branches:
                if not is_leaf[node]:
                    waiting.append(ids[node])
                elif trees[ids[node]] in (-1, tree):
                    trees[ids[node]] = tree
                else:
                    return None
    return trees if trees.min() >= 0 else None


def _read_ensemble(attributes: Attributes) -> dict[str, np.ndarray] | None:
    """The value of each leaf, (leaves,)."""
    weights = attributes["leaf_weights"]
    is_supported = attributes["aggregate_function"] in (_AVERAGE, _SUM) and len(weights) < _EXACT[weights.dtype]
    return {"leaf_weights": weights} if is_supported and _find_trees(attributes) is not None else None


def _write_ensemble(attributes: Attributes, arrays: Arrays) -> Settings:
    return {n: numpy_helper.from_array(a) for n, a in arrays.items()}


def _sum_ensemble(attributes: Attributes, inputs: Sequence[Value], weights: Mapping[str, Value]) -> list[Value]:
    """f(Σ leaf) for each target."""
    trees, targets = _find_trees(attributes), attributes["n_targets"]
    assert trees is not None
    n, dtype = int(trees.max()) + 1, attributes["leaf_weights"].dtype
    kept = {n: a for n, a in attributes.items() if n.startswith(("nodes_", "tree_", "membership_"))}
    numbers = Operators("ai.onnx.ml", attributes["version"]).TreeEnsemble(
        inputs[0], **kept, n_targets=n, leaf_targetids=trees.tolist(), leaf_weights=np.arange(len(trees), dtype=dtype))
    columns = np.eye(targets, dtype=dtype)[list(attributes["leaf_targetids"])]
    leaves = op.Unsqueeze(weights["leaf_weights"], [1]) * constant(columns)
    scores = op.ReduceSum(op.Gather(leaves, _shape(numbers, inputs[0], n)), [1], keepdims=0)
    scores = scores / dtype.type(n) if attributes["aggregate_function"] == _AVERAGE else scores
    return [post_transform(scores, _TRANSFORMS[attributes["post_transform"]], targets)]


def _split_type(attributes: Attributes, elem_type: int) -> int:
    return int(helper.np_dtype_to_tensor_dtype(attributes["nodes_splits"].dtype))


TREES = {
    "TreeEnsemble": MlOperator(_read_ensemble, _sum_ensemble, _write_ensemble, _split_type, reads_rows=True),
    "TreeEnsembleClassifier": MlOperator(_read_classifier, _classify, _write_classifier, _keep_type, reads_rows=True),
    "TreeEnsembleRegressor": MlOperator(_read_regressor, _regress, _write, _keep_type, reads_rows=True),
}
