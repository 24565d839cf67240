"""Products as onnxruntime's optimizer and quantizers write them: inside of fused attention, and of integers."""

import numpy as np
from onnx import parser

DRAW = np.random.default_rng(0)


def draw(*shape):
    return DRAW.normal(size=shape).astype(np.float32)


def numbers(array):
    return "{" + ", ".join(map(str, np.ravel(array))) + "}"


def attention(sizes="", output="/encoder/layer.0/attention/self/Reshape_3_output_0"):
    """The node that onnxruntime's optimizer fuses from three products and attention."""
    columns = 16 if sizes else 12
    return parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[3, 5, 4] x) => (float[3, 5, 4] y)
    <float[4, {columns}] Attention_0_qkv_weight = {numbers(draw(4, columns))},
     float[{columns}] Attention_0_qkv_bias = {numbers(draw(columns))}> {{
      ["Attention_0"] "{output}" = com.microsoft.Attention <num_heads = 2{sizes}> (
          x, Attention_0_qkv_weight, Attention_0_qkv_bias)
      y = Identity ("{output}")
    }}""")


def integers(style):
    """A product of 4 and 3 features with a weight of integers, as a quantization writes it, or fused from that."""
    w = numbers(DRAW.integers(-100, 100, (4, 3)))
    nodes = {"MatMulInteger": "q, t, u = DynamicQuantizeLinear (x)  p = Mul (t, s)  "
                              '["/fc/MatMul_quant"] i = MatMulInteger (q, w, u, z)  f = Cast <to = 1> (i)  '
                              "m = Mul (f, p)  y = Add (m, b)",
             "MatMulIntegerToFloat": "q, t, u = DynamicQuantizeLinear (x)  "
                                     '["/fc/MatMul"] y = com.microsoft.MatMulIntegerToFloat (q, w, t, s, u, z, b)',
             "DynamicQuantizeMatMul": '["/fc/MatMul"] y = com.microsoft.DynamicQuantizeMatMul (x, w, s, z, b)',
             "DequantizeLinear": 'v = DequantizeLinear (w, s, z)  ["/fc/MatMul"] m = MatMul (x, v)  y = Add (m, b)'}
    return parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[3, 5, 4] x) => (float[3, 5, 3] y)
    <float s = {{0.01}}, int8 z = {{0}}, int8[4, 3] w = {w}, float[3] b = {{1, 2, 3}}> {{ {nodes[style]} }}""")
