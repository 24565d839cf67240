"""The networks in JAX, with the parameters of torch's."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax


def part(w, prefix):
    """The parameters under a prefix, without it."""
    return {n.removeprefix(prefix + "."): a for n, a in w.items() if n.startswith(prefix + ".")}


def linear(w, x):
    return x @ w["weight"].T + w["bias"]


def conv(w, x, stride=1, padding=0):
    y = lax.conv_general_dilated(x, w["weight"], (stride, stride), [(padding, padding)] * 2)
    return y + w["bias"][:, None, None] if "bias" in w else y


def max_pool(x, size, stride, padding=0):
    around = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, size, size), (1, 1, stride, stride), around)


def batch_norm(w, x):
    scale = w["weight"] / jnp.sqrt(w["running_var"] + 1e-5)
    return x * scale[:, None, None] + (w["bias"] - w["running_mean"] * scale)[:, None, None]


def layer_norm(w, x):
    c = x - x.mean(-1, keepdims=True)
    return c / jnp.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * w["weight"] + w["bias"]


def dense(w, x):
    layers = sorted({int(n.split(".")[0]) for n in w})
    for i in layers:
        x = linear(part(w, str(i)), x)
        x = jax.nn.relu(x) if i < layers[-1] else x
    return x


def lenet(w, x):
    x = max_pool(jax.nn.relu(conv(part(w, "0"), x, padding=2)), 2, 2)
    x = max_pool(jax.nn.relu(conv(part(w, "3"), x)), 2, 2)
    return dense({n: a for n, a in w.items() if int(n.split(".")[0]) > 6}, x.reshape(len(x), -1))


def block(w, x):
    stride = 2 if "past.0.weight" in w else 1
    y = jax.nn.relu(batch_norm(part(w, "norm1"), conv(part(w, "conv1"), x, stride, 1)))
    y = batch_norm(part(w, "norm2"), conv(part(w, "conv2"), y, 1, 1))
    return jax.nn.relu(y + (batch_norm(part(w, "past.1"), conv(part(w, "past.0"), x, 2)) if stride == 2 else x))


def resnet(w, x):
    x = max_pool(jax.nn.relu(batch_norm(part(w, "norm"), conv(part(w, "conv"), x, 2, 3))), 3, 2, 1)
    for i in range(8):
        x = block(part(w, f"blocks.{i}"), x)
    return linear(part(w, "head"), x.mean((2, 3)))


def attention(w, x, heads):
    n, length, width = x.shape
    w_in, w_out = {"weight": w["in_proj_weight"], "bias": w["in_proj_bias"]}, part(w, "out_proj")
    q, k, v = (a.reshape(n, length, heads, -1) for a in jnp.split(linear(w_in, x), 3, -1))
    return linear(w_out, jax.nn.dot_product_attention(q, k, v).reshape(n, length, width))


def encoder(w, x, heads=4):
    for i in range(len({m[0] for n in w if (m := re.match(r"layers\.layers\.\d+", n))})):
        v = part(w, f"layers.layers.{i}")
        x = layer_norm(part(v, "norm1"), x + attention(part(v, "self_attn"), x, heads))
        h = jax.nn.gelu(linear(part(v, "linear1"), x), approximate=False)
        x = layer_norm(part(v, "norm2"), x + linear(part(v, "linear2"), h))
    return linear(part(w, "head"), x.mean(1))


def bert(w, x):
    return encoder(w, layer_norm(part(w, "norm"), w["token.weight"][x] + w["place"]), heads=8)


NETS = {"lenet": lenet, "resnet18": resnet, "encoder": partial(encoder, heads=4), "bert": bert}


def cost(loss, y, t):
    """The mean loss of a batch."""
    if loss == "square":
        return ((y - t) ** 2).mean()
    if loss == "binary":
        return (jax.nn.softplus(y) - t * y).mean()
    return -jnp.take_along_axis(jax.nn.log_softmax(y), t[:, None], 1).mean()
