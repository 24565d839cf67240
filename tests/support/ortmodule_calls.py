"""Calls of the kinds that ORTModule's own tests make: modules, their arguments, and how a layer differs from each."""

import collections
import dataclasses
import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_structure

from ortpartial import OnnxLayer

Point = collections.namedtuple("Point", "a b")


class Network(nn.Module):
    """Two linear layers, and the parts of a case."""

    def __init__(self, **parts):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 3), nn.Linear(3, 2)
        for name, part in parts.items():
            setattr(self, name, part)

    def net(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Other(torch.autograd.Function):
    """A gradient that is another one than the forward pass has."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * 7


class Same(Other):
    """A gradient that is the one of the forward pass."""

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


@dataclasses.dataclass
class Fields:
    a: torch.Tensor


class Holder:
    def __init__(self, a):
        self.a = a


def optional(self, x, y=None, z=None):
    return self.net(x + (0 if z is None else z))


def in_place(self, x):
    x = x.clone()
    return self.net(x.add_(1))


def twice(self, x):
    y = self.net(x)
    return y, y


def nondifferentiable(self, x):
    h = self.fc1(x)
    return h, (h > 0.01).long(), self.fc2(h), (h < 0).long()


def with_loss(self, x, t=None):
    y = self.net(x)
    return y if t is None else (functional.cross_entropy(y, t), y)


def list_cases():
    """By name: forward, arguments by position and by keyword, and the further parts of the module."""
    torch.manual_seed(0)
    x, y, z = (torch.randn(5, 4) for _ in range(3))
    ids = torch.tensor([[2, 1, 0], [5, 2, 4]])
    named = {"x": x, "y": y, "z": z}
    return {
        "a tensor": (lambda self, x: self.net(x), (x,)),
        "two tensors": (lambda self, x, y: self.net(x + y), (x, y)),
        "any keywords": (lambda self, x, **others: self.net(x + others["z"]), (x,), {"z": z}),
        "any positions": (lambda self, *xs: self.net(sum(xs)), (x, y, z)),
        "keywords": (lambda self, x=None, y=None, z=None: self.net(x + y + z), (), named),
        "keyword only": (lambda self, x, *, y: self.net(x + y), (x,), {"y": y}),
        "an optional keyword": (optional, (x,), {"z": z}),
        "None by position": (optional, (x, None, z)),
        "a boolean": (lambda self, x, flag: self.net(x if flag else -x), (x, True)),
        "an int": (lambda self, x, n: self.net(x * n), (x, 3)),
        "a float": (lambda self, x, n: self.net(x * n), (x, 0.5)),
        "a default": (lambda self, x, n=0.5: self.net(x * n), (x,)),
        "a string": (lambda self, x, s: self.net(x if s == "a" else -x), (x, "a")),
        "a dtype": (lambda self, x, kind: self.net(x.to(kind)), (x, torch.float32)),
        "a device": (lambda self, x, place: self.net(x.to(place)), (x, torch.device("cpu"))),
        "a list": (lambda self, xs: self.net(xs[0] + xs[1]), ([x, y],)),
        "a tuple": (lambda self, xs: self.net(xs[0] + xs[1]), ((x, y),)),
        "a dict": (lambda self, d: self.net(d["a"] + d["b"]), ({"a": x, "b": y},)),
        "a named tuple": (lambda self, p: self.net(p.a - p.b), (Point(x, y),)),
        "nested": (lambda self, d, xs: self.net(d["a"][0] + d["b"]["c"] + xs[1]),
                   ({"a": [x, 2], "b": {"c": y}}, [None, z])),
        "a boolean tensor": (lambda self, x, m: self.net(x * m), (x, y > 0)),
        "a scalar tensor": (lambda self, x, m: self.net(x * m), (x, torch.tensor(2.0))),
        "one tensor for two": (lambda self, x, y: self.net(x * y), (x, x)),
        "an unused argument": (lambda self, x, y: self.net(x), (x, y)),
        "an unused first argument": (lambda self, x, y: self.net(y), (x, y)),
        "an unused layer": (lambda self, x: self.net(x), (x,), {}, {"unused": nn.Linear(3, 3)}),
        "an unused norm": (lambda self, x: self.net(x), (x,), {}, {"unused": nn.BatchNorm1d(3)}),
        "returns a dict": (lambda self, x: {"a": self.fc1(x), "b": self.net(x)}, (x,)),
        "returns an OrderedDict": (lambda self, x: collections.OrderedDict(a=self.fc1(x), b=self.net(x)), (x,)),
        "returns a named tuple": (lambda self, x: Point(self.fc1(x), self.net(x)), (x,)),
        "returns a list": (lambda self, x: [self.fc1(x), self.net(x)], (x,)),
        "returns a tuple of one": (lambda self, x: (self.net(x),), (x,)),
        "returns nested": (lambda self, x: {"a": [self.fc1(x), None], "b": (self.net(x), 3, "text")}, (x,)),
        "returns None": (lambda self, x: (self.net(x), None), (x,)),
        "returns a tensor twice": (twice, (x,)),
        "returns an input": (lambda self, x, m: (self.net(x), m), (x, torch.arange(5))),
        "returns a constant": (lambda self, x: (self.net(x), torch.ones(3)), (x,)),
        "returns a parameter": (lambda self, x: (self.net(x), self.w), (x,), {}, {"w": nn.Parameter(torch.ones(3))}),
        "returns whole numbers between": (nondifferentiable, (x,)),
        "returns its loss": (with_loss, (x, torch.tensor([0, 1, 0, 1, 1]))),
        "no weights": (lambda self, x: x, (x,)),
        "in place": (in_place, (x,)),
        "detached": (lambda self, x: self.net(x.detach()) + self.fc2(self.fc1(x).detach()), (x,)),
        "padding_idx": (lambda self, ids: self.e(ids), (ids,), {}, {"e": nn.Embedding(6, 4, padding_idx=2)}),
        "padding_idx from the end": (lambda self, ids: self.e(ids), (ids,), {},
                                     {"e": nn.Embedding(6, 4, padding_idx=-1)}),
        "padding_idx of a function": (lambda self, ids: functional.embedding(ids, self.e.weight, padding_idx=2), (ids,),
                                      {}, {"e": nn.Embedding(6, 4)}),
        "an autograd Function, its gradient": (lambda self, x: self.net(Same.apply(x)), (x,)),
        "an autograd Function, another gradient": (lambda self, x: self.fc2(Other.apply(self.fc1(x))), (x,)),
        "scale_grad_by_freq": (lambda self, ids: self.e(ids), (ids,), {},
                               {"e": nn.Embedding(6, 4, scale_grad_by_freq=True)}),
        "EmbeddingBag": (lambda self, ids: self.e(ids), (ids,), {},
                         {"e": nn.EmbeddingBag(6, 4, padding_idx=2, mode="sum")}),
        "a set": (lambda self, x, m: self.net(x * len(m)), (x, {1})),
        "returns an object": (lambda self, x: Holder(self.net(x)), (x,)),
        "returns a dataclass": (lambda self, x: Fields(self.net(x)), (x,)),
    }


def compare(forward, args, named=None, parts=None):
    """What differs between a layer and its module: forms, numbers, parameters, gradients; "" where nothing does."""
    torch.manual_seed(0)
    named = named or {}
    module = type("Case", (Network,), {"forward": forward})(**parts or {})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            layer = OnnxLayer.from_torch(module, (*args, named))
            outputs = [net(*args, **named) for net in (module, layer)]
            leaves = [tree_leaves(y) for y in outputs]
            assert tree_structure(outputs[0]) == tree_structure(outputs[1]), "another form is returned"
            for theirs, ours in zip(*leaves, strict=True):
                if isinstance(theirs, torch.Tensor):
                    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
                assert isinstance(theirs, torch.Tensor) or ours == theirs
            parameters = [dict(net.named_parameters()) for net in (module, layer)]
            assert parameters[0].keys() == parameters[1].keys(), "other parameters"
            for ys in leaves:
                if terms := [y.square().sum() for y in ys if isinstance(y, torch.Tensor) and y.requires_grad]:
                    sum(terms).backward()
            for name, p in parameters[0].items():
                ours = parameters[1][name].grad
                torch.testing.assert_close(torch.zeros_like(p) if ours is None else ours,
                                           torch.zeros_like(p) if p.grad is None else p.grad, rtol=1e-3, atol=1e-4)
        except Exception as e:
            return f"{type(e).__name__}{', with a warning' if said else ''}"
    return ""
