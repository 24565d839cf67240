"""Gradients of operators of ai.onnx.ml, most of which are standard operators once they have been read."""

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import op
from ortpartial.model import ML_OPERATORS, compute_ml

from ..grad import composed
from ..registry import no_gradient, refuse_gradient

DOMAIN = "ai.onnx.ml"


def _compose(*inputs, node):
    outputs = compute_ml(node.schema, inputs, node.attributes)
    if outputs is None:
        raise NoGradientError(f"{node!r} has no gradient with these attributes: leave the weights before this node out "
                              f"of weights_to_train.")
    return outputs


for _op_type in (n for n in ML_OPERATORS if not n.startswith("TreeEnsemble")):
    composed(_op_type, DOMAIN)(_compose)


@composed("ArrayFeatureExtractor", DOMAIN)
def _(x, i):
    """y = x[..., i], a row where x is a vector."""
    y = op.Gather(x, op.Reshape(i, [-1]), axis=-1)
    return op.Unsqueeze(y, [0]) if x.shape is not None and len(x.shape) == 1 else y


# A gradient by the leaves does not come here: a TreeEnsemble that is read is a choice among its leaves.
no_gradient("Binarizer", "CategoryMapper", "LabelEncoder", "OneHotEncoder", "TreeEnsemble", "TreeEnsembleClassifier",
            "TreeEnsembleRegressor", domain=DOMAIN)
refuse_gradient("CastMap", "DictVectorizer", domain=DOMAIN,
                reason="a gradient goes through tensors, and not through maps; train an output before it")
