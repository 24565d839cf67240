"""No gradient is zero in silence: every float input of every operator has a gradient, none by nature, or an error."""

from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from corpus import CASES, CONSTANT_CASES, LEFT_OUT, has_body
from once import ON_BOTH
from onnx import numpy_helper
from table import OLD
from verdicts import corpus_case, judge, list_float_inputs, list_schemas, model_case, node_case, spell

from ortpartial import testing
from ortpartial.autodiff import has_rule
from ortpartial.exceptions import ModelError
from ortpartial.testing import check_gradient

#: Float inputs by which no operator changes but by jumps, and why.
ZERO = {
    "Bernoulli.input": "a number drawn is 0 or 1, and the draw remains the same between jumps",
    "CastLike.target_type": "its type alone is read",
    "Ceil.X": "constant between jumps",
    "EyeLike.input": "its shape alone is read",
    "Floor.X": "constant between jumps",
    "Hardmax.input": "the place of the largest element, constant between jumps",
    "MelWeightMatrix.lower_edge_hertz": "edges are rounded to bins of the spectrum",
    "MelWeightMatrix.upper_edge_hertz": "edges are rounded to bins of the spectrum",
    "OneHot.depth": "a size",
    "OneHot.indices": "an index",
    "RandomNormalLike.input": "its shape alone is read",
    "RandomUniformLike.input": "its shape alone is read",
    "Range.limit": "a size, constant between jumps",
    "Round.X": "constant between jumps",
    "Sign.input": "constant between jumps",
    "MaxRoiPool.rois": "edges are rounded to elements",
    "ai.onnx.ml.Binarizer.X": "constant between jumps",
    "ai.onnx.ml.LabelEncoder.X": "a key of a table",
    "ai.onnx.ml.OneHotEncoder.X": "a key of a table",
    "ai.onnx.ml.TreeEnsemble.X": "the leaf that is reached, constant between jumps",
    "ai.onnx.ml.TreeEnsembleClassifier.X": "the leaf that is reached, constant between jumps",
    "ai.onnx.ml.TreeEnsembleRegressor.X": "the leaf that is reached, constant between jumps",
    "com.microsoft.QMoE.fc1_act_block_scale": "not read where the numbers are integers",
    "com.microsoft.QMoE.fc1_act_scale": "not read where the numbers are integers",
    "com.microsoft.QMoE.fc1_global_scale": "not read where the numbers are integers",
    "com.microsoft.QMoE.fc2_act_block_scale": "not read where the numbers are integers",
    "com.microsoft.QMoE.fc2_act_scale": "not read where the numbers are integers",
    "com.microsoft.QMoE.fc2_global_scale": "not read where the numbers are integers",
    "ortpartial.StopGradient.X": "by its definition",
    "ortpartial.StraightThrough.X": "by its definition: the gradient goes to the other input",
}

#: Float inputs by which there is a gradient that is not written: an error says so, and what to do.
REFUSED = {
    "Dropout.ratio": "it decides what is dropped",
    "Resize.roi": "it moves the places between which is interpolated",
    "Resize.scales": "they move the places between which is interpolated",
    "SequenceErase.input_sequence": "a gradient goes through tensors alone",
    "SequenceMap.additional_inputs": "a model with it is not read",
    "SequenceMap.input_sequence": "a model with it is not read",
    **dict.fromkeys(("com.microsoft.GatedAdd.gate_weight", "com.microsoft.MoE.fc3_experts_bias",
                     "com.microsoft.MoE.fc3_experts_weights", "com.microsoft.QMoE.fc3_experts_bias",
                     "com.microsoft.QMoE.fc3_scales"), "no kernel of onnxruntime for processors has it"),
    **dict.fromkeys(("com.microsoft.GroupQueryAttention.k_norm_weight",
                     "com.microsoft.GroupQueryAttention.q_norm_weight"), "read as operators of their own before"),
    **dict.fromkeys(("com.microsoft.GroupQueryAttention.k_scale", "com.microsoft.GroupQueryAttention.v_scale"),
                    "a calibrated scale of the cache"),
    **dict.fromkeys([f"com.microsoft.{name}.{table}_cache" for table in ("cos", "sin") for name in (
        "GroupQueryAttention", "MRotaryEmbedding", "RotaryEmbedding")], "a table of angles"),
}

#: Operators of maps, bits and optimizers, whose inputs no tensor of weights leads to: they have no rule, and no body.
NO_RULE = {"BitCast", "ai.onnx.ml.CastMap", "ai.onnx.ml.DictVectorizer", "ai.onnx.preview.training.Adagrad",
           "ai.onnx.preview.training.Adam", "ai.onnx.preview.training.Gradient", "ai.onnx.preview.training.Momentum"}


def whole(*numbers, dtype=np.int64):
    return np.array(numbers, dtype)


def floats(*numbers):
    return np.array(numbers, np.float32)


def packed(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


ROIS = floats([0, 0.3, 0.4, 3.7, 4.2], [0, 1.6, 0.7, 4.4, 3.1])
CROP = floats(0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9)
STUMP = {"nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
         "nodes_values": [0.1, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
         "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0]}
LEAVES = {"treeids": [0, 0], "nodeids": [1, 2], "ids": [0, 0], "weights": [0.3, 0.7]}
TREE = {"tree_roots": [0], "nodes_splits": numpy_helper.from_array(np.array([0.1], np.float32)),
        "nodes_modes": numpy_helper.from_array(np.array([0], np.uint8)), "nodes_featureids": [1], "n_targets": 1,
        "nodes_truenodeids": [0], "nodes_falsenodeids": [1], "nodes_trueleafs": [1], "nodes_falseleafs": [1],
        "leaf_targetids": [0, 0], "leaf_weights": numpy_helper.from_array(np.array([0.3, 0.7], np.float32))}
VECTORS = {"coefficients": [0.5, -0.7], "kernel_params": [0.4, 0.0, 3.0], "kernel_type": "RBF", "rho": [0.1],
           "support_vectors": [0.1, 0.2, 0.3, -0.4, 0.5, 0.6]}

MS = "com.microsoft"
SEEN = np.array([2, 2], np.int32)  # the places of the last keys
TOKENS = np.array([[1, 0, 1], [3, 2, 0]], np.int32)
GROUPED = [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None, SEEN, np.array(3, np.int32)]
EXPERTS = [(2, 3, 32), (6, 4), packed(4, 16, 16), (4, 16), (4, 16), packed(4, 32, 8), (4, 32), (4, 32)]

# The inputs that are probed by differences (the corpus and the tests of a family compare the others), domain, operator,
# its inputs (shapes of floats, arrays of whole numbers, None for what is left out), attributes.
NODES = [
    ("B", "", "Conv", [(2, 3, 4, 4), (2, 3, 3, 3), (2,)], {}),
    ("B", "", "ConvTranspose", [(2, 3, 4, 4), (3, 2, 3, 3), (2,)], {}),
    ("initial_h", "", "GRU", [(3, 2, 4), (1, 9, 4), (1, 9, 3), (1, 18), None, (1, 2, 3)], {"hidden_size": 3}),
    ("initial_h", "", "RNN", [(3, 2, 4), (1, 3, 4), (1, 3, 3), (1, 6), None, (1, 2, 3)], {"hidden_size": 3}),
    ("X", "", "GlobalLpPool", [(2, 3, 4)], {}),
    ("X rois", "", "MaxRoiPool", [(1, 2, 6, 6), ROIS], {"pooled_shape": [2, 2]}),
    ("input", "", "Trilu", [(3, 4)], {}),
    ("input", "", "EyeLike", [(3, 4)], {}),
    ("input", "", "RandomNormalLike", [(3, 4)], {"seed": 1.0}),
    ("input", "", "RandomUniformLike", [(3, 4)], {"seed": 1.0}),
    ("input", "", "Bernoulli", [floats(0.21, 0.52, 0.83)], {"seed": 1.0}),
    *(("X", "", name, [(3, 4)], {}) for name in ("Ceil", "Floor", "Round")),
    *(("input", "", name, [(3, 4)], {}) for name in ("Hardmax", "Sign")),
    ("target_type", "", "CastLike", [(3, 4), (2,)], {}),
    ("start limit delta", "", "Range", [*floats(0.3, 3.0, 0.7)], {}),
    ("start limit delta", "", "Range", [*floats(3.3, -1.1, -0.7)], {}),
    ("X", "", "Unique", [(3, 4)], {}),
    ("X", "", "Unique", [(3, 4)], {"axis": -1, "sorted": 0}),
    ("lower_edge_hertz upper_edge_hertz", "", "MelWeightMatrix",
     [*whole(8, 16, 8192), *floats(13.3, 4051.7)], {}),
    ("", "", "Dropout", [(3, 4), *floats(0.5), np.array(True)], {"seed": 1}),
    ("data ratio", "", "Dropout", [(3, 4), *floats(0.5), np.array(False)], {}),
    ("indices depth", "", "OneHot", [floats(0.2, 2.3, 3.1), *floats(4.3), (2,)], {}),
    ("", "", "Resize", [(1, 1, 4, 4), CROP, floats(1, 1, 1.6, 0.7)],
     {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}),
    ("roi scales", "", "Resize", [(1, 1, 4, 4), CROP, floats(1, 1, 1.6, 0.7)],
     {"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize"}),
    *(("X", "ai.onnx.ml", *row) for row in [
        ("ArrayFeatureExtractor", [(3, 4), whole(0, 2)], {}),
        ("Binarizer", [(3, 4)], {"threshold": 0.1}),
        ("FeatureVectorizer", [(3, 4), (3, 2)], {"inputdimensions": [4, 2]}),
        ("Imputer", [(3, 4)], {"imputed_value_floats": [0.5], "replaced_value_float": 9.0}),
        ("LabelEncoder", [floats(0.5, 1.5, 2.5)], {"keys_floats": [0.5, 1.5], "values_floats": [3.0, 4.0]}),
        ("LinearClassifier", [(4, 3)], {"coefficients": [0.1 * i for i in range(9)], "intercepts": [0.1] * 3,
                                        "classlabels_ints": [0, 1, 2], "post_transform": "SOFTMAX"}),
        ("LinearRegressor", [(4, 3)], {"coefficients": [0.5, -0.3, 0.2], "intercepts": [0.1]}),
        ("Normalizer", [(4, 3)], {"norm": "L2"}),
        ("OneHotEncoder", [floats(0.1, 1.0, 2.2)], {"cats_int64s": [0, 1, 2]}),
        ("SVMClassifier", [(4, 3)], {**VECTORS, "classlabels_ints": [0, 1], "vectors_per_class": [1, 1]}),
        ("SVMRegressor", [(4, 3)], {**VECTORS, "n_supports": 2}),
        ("Scaler", [(4, 3)], {"offset": [0.1, 0.2, 0.3], "scale": [2.0, 0.5, 3.0]}),
        ("TreeEnsemble", [(4, 3)], TREE),
        ("TreeEnsembleClassifier", [(4, 3)],
         {**STUMP, **{f"class_{n}": v for n, v in LEAVES.items()}, "classlabels_int64s": [0, 1]}),
        ("TreeEnsembleRegressor", [(4, 3)], {**STUMP, **{f"target_{n}": v for n, v in LEAVES.items()}, "n_targets": 1}),
    ]),
    ("Q K V", "ai.onnx.preview", "FlexAttention", [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)], {}),
    ("", "ortpartial", "StopGradient", [(3, 4)], {}),
    ("", "ortpartial", "StraightThrough", [(3, 4), (3, 4)], {}),
    (" ".join(f"fc{i}_{scale}_scale" for i in (1, 2) for scale in ("global", "act", "act_block")), MS, "QMoE",
     [*EXPERTS, *[None] * 6, (6, 4), *[(4,)] * 6], {"k": 2}),
    *(("", MS, *row) for row in [
        ("Attention", [(2, 3, 6), (6, 24), (24,), None, (2, 2, 2, 5, 4), (2, 2, 3, 8)], {"num_heads": 2}),
        ("BiasGelu", [(2, 3, 4), (4,)], {}),
        ("CausalConvWithState", [(2, 6, 5), (6, 1, 4), (6,), (2, 6, 3)], {"activation": "silu"}),
        ("CDist", [(2, 3), (4, 3)], {}),
        ("Inverse", [np.float32([[2.1, 0.3], [0.4, 1.7]])], {}),
        ("MatMulBnb4", [(2, 32), packed(64), (8,)], {"K": 32, "N": 4, "block_size": 16, "quant_type": 1}),
        ("EmbedLayerNormalization", [TOKENS, TOKENS % 2, (5, 8), (4, 8), (2, 8), (8,), (8,)], {}),
        ("FastGelu", [(2, 3, 4), (4,)], {}),
        ("FusedConv", [(1, 4, 5, 5), (4, 2, 3, 3), (4,), (1, 4, 3, 3)], {"activation": "Relu", "group": 2}),
        ("FusedGemm", [(3, 4), (4, 5), (5,)], {"activation": "Sigmoid"}),
        ("FusedMatMul", [(2, 3, 4), (2, 4, 5)], {"alpha": 0.5}),
        ("GatedAdd", [(2, 3, 8), (2, 3, 8), (2, 3, 1)], {}),
        ("GatedAdd", [(2, 3, 8), (2, 3, 8), (2, 3, 1), (8,)], {}),
        ("GatedDeltaNet", [*[(2, 5, 2, 4)] * 2, (2, 5, 2, 3), None, *[(2, 5, 2)] * 2, (2, 2, 3, 4), (2,), (2,)],
         {"gate_activation": "softplus"}),
        ("GatedRMSNorm", [(2, 3, 8), (4,), (2, 3, 8)], {}),
        ("GatherBlockQuantized", [packed(5, 16), whole(3, 0), (5, 2)],
         {"block_size": 16, "quantize_axis": 1}),
        ("Gelu", [(3, 4)], {}),
        ("GroupQueryAttention", [(2, 1, 32), (2, 1, 16), (2, 1, 16), (2, 1, 2, 16), (2, 1, 2, 16), SEEN,
                                 np.array(3, np.int32), None, None, None, (2, 2, 1, 3), (2,)],
         {"num_heads": 2, "kv_num_heads": 1}),
        ("GroupQueryAttention", [*GROUPED, (8, 8), (8, 8)], {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1}),
        ("GroupQueryAttention", [*GROUPED, *[None] * 5, (1,), (1,)], {"num_heads": 2, "kv_num_heads": 1}),
        ("GroupQueryAttention", [*GROUPED, *[None] * 7, (16,), (16,)], {"num_heads": 2, "kv_num_heads": 1}),
        ("LinearAttention", [(2, 5, 8), (2, 5, 8), (2, 5, 6), (2, 2, 4, 3), (2, 5, 2), (2, 5, 2)],
         {"q_num_heads": 2, "kv_num_heads": 2}),
        ("LinearAttentionGate", [(2, 3, 4), (4,), (4,), (2, 3, 4)], {}),
        ("MRotaryEmbedding", [(2, 3, 32), np.zeros((3, 2, 3), np.int64), (8, 8), (8, 8)],
         {"mrope_section": [4, 2, 2], "num_heads": 2}),
        ("MatMulNBits", [(2, 32), packed(6, 2, 8), (6, 2), (6, 2), None, (6,)],
         {"K": 32, "N": 6, "bits": 4, "block_size": 16}),
        ("MoE", [(2, 3, 32), (6, 4), (4, 16, 32), (4, 16), (4, 32, 16), (4, 32)], {"k": 2}),
        ("MoE", [(2, 3, 32), (6, 4), (4, 16, 32), (4, 16), (4, 32, 16), (4, 32), (4, 16, 32), (4, 16)], {"k": 2}),
        ("MultiHeadAttention", [(2, 3, 8), (2, 4, 8), (2, 4, 8), (24,), None, (2, 2, 3, 6), (2, 2, 2, 4), (2, 2, 2, 4)],
         {"num_heads": 2}),
        ("QMoE", EXPERTS, {"k": 2}),
        ("QMoE", [*EXPERTS, packed(4, 16, 16), (4, 16), (4, 16)], {"k": 2}),
        ("QuickGelu", [(3, 4)], {"alpha": 1.5}),
        ("RotaryEmbedding", [(2, 3, 32), np.zeros((2, 3), np.int64), (8, 8), (8, 8)], {"num_heads": 2}),
        ("SkipLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,), (8,), (8,)], {}),
        ("SkipSimplifiedLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,), (8,)], {}, 1),
    ]),
]

#: Float inputs that are sequences or optional values: the operator, a model with it, the shape of x.
MODELS = [
    ("ConcatFromSequence.input_sequence",
     "s = SequenceConstruct(x, x) y = ConcatFromSequence <axis = 0> (s)", (3, 2)),
    ("Optional.input", "o = Optional(x) y = OptionalGetElement(o)", (3, 2)),
    ("OptionalGetElement.input", "y = OptionalGetElement(x)", (3, 2)),
    ("SequenceAt.input_sequence",
     "s = SequenceConstruct(x, x) i = Constant <value_int = 1> () y = SequenceAt(s, i)", (3, 2)),
    ("SequenceConstruct.inputs",
     "s = SequenceConstruct(x, x) i = Constant <value_int = 0> () y = SequenceAt(s, i)", (3, 2)),
    ("SequenceErase.input_sequence", "z = Exp(x) s = SequenceConstruct(x, z) i = Constant <value_int = 0> () "
     "t = SequenceErase(s, i) y = SequenceAt(t, i)", (3, 2)),
    ("SequenceInsert.input_sequence", "z = Neg(x) s = SequenceConstruct(x) i = Constant <value_int = 0> () "
     "t = SequenceInsert(s, z) y = SequenceAt(t, i)", (3, 2)),
    ("SequenceInsert.tensor", "z = Neg(x) s = SequenceConstruct(z) i = Constant <value_int = 1> () "
     "t = SequenceInsert(s, x) y = SequenceAt(t, i)", (3, 2)),
    ("SequenceMap.input_sequence", "s = SequenceConstruct(x, x) t = SequenceMap <body = b (float[3, 2] e) => "
     "(float[3, 2] f) { f = Exp(e) }> (s) y = ConcatFromSequence <axis = 0> (t)", (3, 2)),
    ("SequenceMap.additional_inputs", "z = Exp(x) s = SequenceConstruct(z, z) t = SequenceMap <body = b (float[3, 2] "
     "e, float[3, 2] g) => (float[3, 2] f) { f = Mul(e, g) }> (s, x) y = ConcatFromSequence <axis = 0> (t)", (3, 2)),
    ("SplitToSequence.input", "s = SplitToSequence <axis = 0> (x) i = Constant <value_int = 1> () "
     "y = SequenceAt(s, i)", (3, 2)),
]

#: All cases by name: a function, and its arguments.
EVERY = {**{n: (corpus_case, n) for n in CASES | CONSTANT_CASES
            if not n.endswith("_expanded") and not n.startswith(tuple(LEFT_OUT))},
         **{f"{row[2]} {i}": (node_case, *row[1:]) for i, row in enumerate(NODES)},
         **{f"{row[0]} of a model": (model_case, *row) for row in MODELS}}


def make(name):
    function, *arguments = EVERY[name]
    return function(*arguments)


@cache
def decide():
    """The verdicts on each float input by case, of the cases that may change the verdict."""
    verdicts = defaultdict(dict)
    for name in EVERY:
        case = make(name)
        if any("gradient" not in verdicts[i].values() for i in case.inputs):
            for i, verdict in zip(case.inputs, judge(case), strict=True):
                verdicts[i][name] = verdict
    return verdicts


def test_every_float_input_is_decided():
    """An operator that onnx adds appears here: it needs a case, and perhaps a reason."""
    verdicts = decide()
    without = {i: set(v.values()) for i, v in verdicts.items() if "gradient" not in v.values()}
    assert {i for i, v in without.items() if v == {"zero"}} == set(ZERO)
    assert {i for i, v in without.items() if v != {"zero"}} == set(REFUSED)
    assert {i.rpartition(".")[0] for i in list_float_inputs() - set(verdicts)} == NO_RULE


@pytest.mark.parametrize("name", sorted(NO_RULE))
def test_no_rule_is_an_error(name):
    domain, _, op_type = name.rpartition(".")
    assert not has_rule(op_type, domain)
    assert not has_body(max(list_schemas()[domain, op_type], key=lambda s: s.since_version))


#: Operators that the reference evaluator computes: it draws the same numbers in each run, and onnxruntime has no other.
ELSEWHERE = ("Bernoulli", "FlexAttention", "MelWeightMatrix", "RandomNormalLike", "RandomUniformLike")

#: Operators whose kernels are of float32 alone.
SINGLE = ("GlobalLpPool", "MaxRoiPool", "QMoE", "Resize")


def compare(name, wrt, monkeypatch, is_single):
    """Compare the gradients of a case by some of its float inputs with central differences."""
    case = make(name)
    if name.startswith(ELSEWHERE):
        monkeypatch.setattr(testing, "Session", refuse_session)
    settings = {"dtype": np.float32, "step": 1e-2, "rtol": 1e-2} if is_single else {}
    check_gradient(case.f, case.args, wrt=wrt, order=1, directions=1, symbolic=False, skip_kinks=True, **settings)


#: Operators that onnxruntime 1.19.2 does not know.
YOUNG = ("QMoE", "TreeEnsemble")


def refuse_session(model):
    """In place of a session of onnxruntime, so that the reference evaluator computes."""
    raise ModelError("There is no kernel.")


@pytest.mark.parametrize("i", [pytest.param(i, id=f"{row[2]} {i}", marks=ON_BOTH if row[2] in YOUNG else ())
                               for i, row in enumerate(NODES) if row[0]])
def test_nodes(i, monkeypatch):
    probed, domain, op_type, *_ = NODES[i]
    if OLD and op_type in YOUNG:
        pytest.skip("onnxruntime 1.19.2 knows no such node")
    case = make(f"{op_type} {i}")
    wrt = [k for k, n in enumerate(case.inputs) if n.rpartition(".")[2] in probed.split()]
    assert wrt
    compare(f"{op_type} {i}", wrt, monkeypatch, domain == "ai.onnx.ml" or op_type in SINGLE)


@pytest.mark.parametrize("name", [f"{name} of a model" for name, *_ in MODELS if name not in REFUSED])
def test_sequences(name, monkeypatch):
    compare(name, [0], monkeypatch, is_single=False)


def test_what_is_zero_is_probed():
    probed = {spell(domain, op_type, n) for names, domain, op_type, *_ in NODES for n in names.split()}
    left_out = {i for i, reason in ZERO.items() if reason.startswith("by its definition")}
    assert set(ZERO) - probed == left_out


# Cases at a jump, where differences are no derivatives: the beginning of their names, and why.
JUMPS = {"sign": "at 0", "bernoulli": "drawn anew in each run", "onehot": "a size at a whole number",
         "range_float": "a size at a whole number", "resize_upsample_scales_nearest": "a size at a whole number"}


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("name", [n for n in EVERY if EVERY[n][0] is corpus_case and not n.startswith(tuple(JUMPS))])
def test_zeros_of_the_corpus(name, monkeypatch):
    """Where a rule has no cotangent in a case, as in a mode of the operator, differences are zero."""
    zeros = [i for i, verdict in enumerate(judge(make(name))) if verdict == "zero"]
    if zeros:
        compare(name, zeros, monkeypatch, name.startswith("resize"))
