"""Decoders with the operators, inputs and names of onnxruntime-genai's model builder, small and of random weights.

They are written by hand, so that no test of them needs the builder, and run from onnxruntime 1.19.2 on.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "com.microsoft"


def make_decoder(*, layers=1, width=32, heads=2, shared_heads=1, hidden=48, vocabulary=24, tokens=32, is_packed=True,
                 has_positions=False, window=-1, seed=0):
    """A decoder as the builder writes a Llama.

    Its inputs are ``input_ids``, ``attention_mask``, and ``past_key_values.0.key`` and so on, whose last size is
    symbolic as the builder's is; its outputs ``logits`` and ``present.0.key`` and so on.

    Parameters
    ----------
    layers, width, heads, shared_heads, hidden, vocabulary, tokens : int
        Layers, width of a token, heads of queries, heads of keys and values, width inside of the feed-forward part, of
        the logits, and the most tokens of a row. The width is a multiple of 16 times the heads.
    is_packed : bool
        Whether the products hold weights of 4 bits (MatMulNBits), in blocks of 16, or floats (MatMul).
    has_positions : bool
        Whether there is an input ``position_ids``, which RotaryEmbedding reads; otherwise attention turns queries and
        keys itself.
    window : int
        How far attention looks back; -1 for all the way.
    seed : int
        Of the weights.

    Returns
    -------
    onnx.ModelProto
    """
    rng = np.random.default_rng(seed)
    nodes, weights = [], {}
    size = width // heads
    angles = np.arange(tokens)[:, None] / 10000 ** (np.arange(0, size, 2) / size)
    weights |= {"cos_cache": np.cos(angles).astype("f4"), "sin_cache": np.sin(angles).astype("f4")}

    def add(op_type, inputs, path, domain="", outputs=1, **attributes):
        outputs = [f"/{path}/output_{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
        nodes.append(helper.make_node(op_type, inputs, outputs, f"/{path}/{op_type}", domain=domain, **attributes))
        return outputs[0] if len(outputs) == 1 else outputs

    def project(x, path, inside, outside, outputs=1):
        """A product with a weight."""
        name = path.replace("/", ".") + ".MatMul.weight"
        if not is_packed:
            weights[name] = (rng.standard_normal((inside, outside)) / np.sqrt(inside)).astype("f4")
            return add("MatMul", [x, name], f"{path}/MatMul", outputs=outputs)
        blocks = inside // 16
        weights[f"{name}_Q4"] = rng.integers(0, 256, (outside, blocks, 8)).astype("u1")
        weights[f"{name}_scales"] = (rng.uniform(0.5, 1.5, (outside, blocks)) / np.sqrt(21 * inside)).astype("f4")
        return add("MatMulNBits", [x, f"{name}_Q4", f"{name}_scales"], f"{path}/MatMul_Q4", DOMAIN, outputs,
                   K=inside, N=outside, bits=4, block_size=16, accuracy_level=1)

    def scale(path):
        """The factors of a normalization."""
        weights[name := f"{path.replace('/', '.')}.weight"] = rng.uniform(0.5, 1.5, width).astype("f4")
        return name

    def turn(x, path, n):
        """Queries or keys turned by the angles of their positions."""
        return add("RotaryEmbedding", [x, "position_ids", "cos_cache", "sin_cache"], path, DOMAIN, num_heads=n,
                   rotary_embedding_dim=size)

    def attend(x, path, layer):
        """Attention, which reads the past and returns the present."""
        widths = [n * size for n in (heads, shared_heads, shared_heads)]
        if has_positions:
            q, k, v = (project(x, f"{path}/{c}_proj", width, n) for c, n in zip("qkv", widths, strict=True))
            q, k = turn(q, f"{path}/q_rotary", heads), turn(k, f"{path}/k_rotary", shared_heads)
        else:
            q, k, v = project(x, f"{path}/qkv_proj", width, sum(widths)), "", ""
        y, *_ = add("GroupQueryAttention",
                    [q, k, v, f"past_key_values.{layer}.key", f"past_key_values.{layer}.value", "last", "total",
                     *(() if has_positions else ("cos_cache", "sin_cache"))], f"{path}/GroupQueryAttention", DOMAIN,
                    [f"/{path}/attended", f"present.{layer}.key", f"present.{layer}.value"], num_heads=heads,
                    kv_num_heads=shared_heads, scale=size**-0.5, local_window_size=window,
                    do_rotary=int(not has_positions))
        return project(y, f"{path}/o_proj", heads * size, width)

    weights["one"], weights["1"] = np.array([1]), np.array(1)
    counted = add("ReduceSum", ["attention_mask", "one"], "mask/ReduceSum", keepdims=0)
    add("Cast", [add("Sub", [counted, "one"], "mask/Sub")], "mask/last", outputs=["last"], to=TensorProto.INT32)
    long = add("Gather", [add("Shape", ["attention_mask"], "mask/Shape"), "1"], "mask/Gather", axis=0)
    add("Cast", [long], "mask/total", outputs=["total"], to=TensorProto.INT32)

    weights["model.embed_tokens.weight"] = rng.standard_normal((vocabulary, width)).astype("f4")
    x = add("Gather", ["model.embed_tokens.weight", "input_ids"], "model/embed_tokens")
    y = add("SimplifiedLayerNormalization", [x, scale("model/layers.0/input_layernorm")],
            "model/layers.0/input_layernorm", axis=-1, epsilon=1e-6, stash_type=1)

    def normalize(x, d, path, is_last=False):
        """The sum, and its normalization."""
        outputs = [f"/{path}/output_0", *(() if is_last else ("", "", f"/{path}/output_3"))]
        add("SkipSimplifiedLayerNormalization", [x, d, scale(path)], path, DOMAIN, outputs, epsilon=1e-6)
        return outputs[-1], outputs[0]

    for layer in range(layers):
        path = f"model/layers.{layer}"
        x, y = normalize(x, attend(y, f"{path}/attn", layer), f"{path}/post_attention_layernorm")
        gate, up = (project(y, f"{path}/mlp/{n}_proj", width, hidden) for n in ("gate", "up"))
        slope = add("Mul", [gate, add("Sigmoid", [gate], f"{path}/mlp/act_fn")], f"{path}/mlp/act_fn/Mul")
        d = project(add("Mul", [slope, up], f"{path}/mlp/Mul"), f"{path}/mlp/down_proj", hidden, width)
        is_last = layer == layers - 1
        following = f"model/layers.{layer + 1}/" + ("final_norm_layernorm" if is_last else "input_layernorm")
        x, y = normalize(x, d, following, is_last)
    project(y, "lm_head", width, vocabulary, outputs=["logits"])

    sizes = ["batch_size", "sequence_length"]
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in {
        "input_ids": sizes, "attention_mask": ["batch_size", "total_sequence_length"],
        **({"position_ids": sizes} if has_positions else {})}.items()]
    caches = [(layer, kind) for kind in ("key", "value") for layer in range(layers)]

    def declare(name, length):
        return [helper.make_tensor_value_info(f"{name}.{layer}.{kind}", TensorProto.FLOAT,
                                              ["batch_size", shared_heads, length, "kv_cache_dim"])
                for layer, kind in caches]

    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*sizes, vocabulary])
    graph = helper.make_graph(
        nodes, "main_graph", [*ids, *declare("past_key_values", "past_sequence_length")],
        [logits, *declare("present", "total_sequence_length")],
        [numpy_helper.from_array(a, n) for n, a in weights.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def past_of(model, rows=1):
    """Empty caches for the inputs of a model, by name."""
    attention = next(n for n in model.graph.node if n.op_type == "GroupQueryAttention")
    shared = next(a.i for a in attention.attribute if a.name == "kv_num_heads")
    cos = next(t for t in model.graph.initializer if t.name == "cos_cache")
    return {i.name: np.zeros((rows, shared, 0, 2 * cos.dims[1]), np.float32)
            for i in model.graph.input if i.name.startswith("past")}


def generate(session, model, ids, count):
    """Ids with so many more chosen greedily, one by one, with the cache.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        Of the model.
    model : onnx.ModelProto
        One of `make_decoder`.
    ids : list of int
        The first tokens.
    count : int
        How many follow.

    Returns
    -------
    list of int
    """
    ids, fed, past = list(ids), 0, past_of(model)
    names = [o.name for o in model.graph.output]
    has_positions = any(i.name == "position_ids" for i in model.graph.input)
    for _ in range(count):
        feeds = {"input_ids": np.array([ids[fed:]]), "attention_mask": np.ones((1, len(ids)), np.int64), **past}
        if has_positions:
            feeds["position_ids"] = np.arange(fed, len(ids))[None]
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
        past = {n: outputs[n.replace("past_key_values", "present")] for n in past}
        fed = len(ids)
        ids.append(int(outputs["logits"][0, -1].argmax()))
    return ids
