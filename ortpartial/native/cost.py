"""The cost model of engine "auto": whether compiling a step saves time, from its graph and the number of steps alone.

It reads no clock and no cache, so that a training that is run again takes the same engine, and gives the same bits. Its
rates were measured on a Xeon and an EPYC with AVX-512; the bench `engines.py` compares its choice with every engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

import numpy as np

from ortpartial.graph import PRODUCTS, VIEWS, Node, Value, count_flops, count_runs, topological

from .products import LARGE

__all__ = ["StepCost", "estimate_cost"]

#: Seconds that have to be saved at least: nobody waits for less.
_LEAST = 1.0

#: By how much compiling may take longer than it is estimated to.
_MARGIN = 2.0


@dataclass(frozen=True)
class _Rates:
    """Seconds that a step takes: for itself, by node, floating-point operation, number and row.

    Operations of convolutions, in float32 and in other types, of large convolutions in float32, and of products with an
    operand that leaves the caches have rates of their own.
    """

    step: float
    node: float
    flop: float
    convolution: float
    lowered: float
    large: float
    far: float
    number: float
    row: float


#: Operators that read no more numbers than they write.
_SELECTING = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})

#: Elements from which on an operand of a product leaves the caches.
_FAR = 2**20

#: Channels and outputs from which on a convolution fills registers.
_FULL = 16

#: The share of each further core that onnxruntime gains by it, and compiled steps in large products.
_GAIN = 0.6

#: Operations of a product from which on threads share it.
_SHARED = 2**22

#: Of the faster of engines "epoch" and "step" on one core, within a factor of two for networks from 10-1 to 8 million
#: weights with SGD, Nesterov's momentum and Adam at batches of 1 to 1024 rows (onnxruntime 1.19.2 and 1.32.0).
_ONNXRUNTIME = _Rates(step=2e-6, node=1.8e-7, flop=7.5e-12, convolution=3.4e-11, lowered=1e-9, large=2e-11,
                      far=7.5e-12, number=7.5e-11, row=1.1e-8)

#: The same on processors of AMD, whose vector units products reach in onnxruntime and in C alike; those of Intel have
#: twice as many, which onnxruntime alone uses.
_ON_AMD = replace(_ONNXRUNTIME, flop=1.07e-11, far=1.1e-11)

#: Of the same steps, compiled by gcc 12.
_COMPILED = _Rates(step=2e-8, node=6e-10, flop=1.05e-11, convolution=4.8e-11, lowered=9e-11, large=9e-12, far=1.4e-11,
                   number=2e-11, row=2.5e-9)

#: The same with products in bfloat16 by AVX512-BF16, which threads share.
_IN_BFLOAT16 = replace(_COMPILED, flop=6e-12, convolution=3e-11, far=6e-12)

#: The same on processors of AMD. Those of Intel were not measured with products in blocks.
_COMPILED_ON_AMD = replace(_COMPILED, flop=1e-11, far=1e-11)

#: Seconds that the compiler takes for a file, and for each small product of matrices and each other node in it.
_FILE, _PRODUCT, _NODE = 0.1, 0.05, 0.001


@dataclass(frozen=True)
class StepCost:
    """The operations and memory of a step.

    Parameters
    ----------
    nodes : int
        The number of nodes that compute something, as often as they run.
    flops : int
        The number of floating-point operations.
    numbers : int
        How many numbers the nodes read and write.
    rows : int
        How many rows are gathered.
    length : int
        The number of nodes, each counted once.
    products : int
        How many of these are products of matrices that are compiled, as they are small.
    convolutions : int
        How many of the operations are those of small convolutions of float32.
    lowered : int
        How many are those of other convolutions, which onnxruntime has no kernel for.
    large : int
        How many are those of convolutions of float32 that fill registers.
    far : int
        How many are those of other products with an operand that leaves the caches.
    shared : int
        How many are those of products that threads share.
    """

    nodes: int
    flops: int
    numbers: int
    rows: int
    length: int
    products: int
    convolutions: int = 0
    lowered: int = 0
    large: int = 0
    far: int = 0
    shared: int = 0

    @property
    def seconds(self) -> float:
        """How long onnxruntime takes for the step on a single core, within an epoch."""
        return self.take_on(1)

    def take_on(self, cores: int) -> float:
        """How long onnxruntime takes for the step with a thread on each of so many cores.

        Parameters
        ----------
        cores : int
            The number of cores.

        Returns
        -------
        float
            Seconds.
        """
        rates = _ON_AMD if _is_amd() else _ONNXRUNTIME
        calls = rates.step + rates.node * self.nodes
        return calls + (self._take(rates) - calls) / (1 + _GAIN * (cores - 1))

    @property
    def seconds_compiled(self) -> float:
        """How long the compiled step takes on a single core."""
        return self.take_compiled(1)

    def take_compiled(self, cores: int, in_bfloat16: bool = False) -> float:
        """How long the compiled step takes with a thread on each of so many cores.

        Parameters
        ----------
        cores : int
            The number of cores.
        in_bfloat16 : bool
            Whether the operands of products are rounded to bfloat16.

        Returns
        -------
        float
            Seconds.
        """
        rates = _IN_BFLOAT16 if in_bfloat16 else _COMPILED_ON_AMD if _is_amd() else _COMPILED
        shared = rates.flop * self.shared + rates.large * self.large
        return self._take(rates) - shared + shared / (1 + _GAIN * (cores - 1))

    @property
    def seconds_compiling(self) -> float:
        """How long it takes to compile the step."""
        return _FILE + _PRODUCT * self.products + _NODE * (self.length - self.products)

    def pays_off(self, steps: int, cores: int = 1, in_bfloat16: bool = False) -> bool:
        """Whether so many steps are faster if the step is compiled first, by so much that somebody notices.

        Parameters
        ----------
        steps : int
            The number of steps to come.
        cores : int
            The number of cores that may be used.
        in_bfloat16 : bool
            Whether the operands of products are rounded to bfloat16, which onnxruntime does in operators of their own.

        Returns
        -------
        bool

        Examples
        --------
        >>> small = StepCost(nodes=40, flops=29_000, numbers=39_000, rows=2, length=40, products=6)
        >>> small.pays_off(1_000), small.pays_off(1_000_000)
        (False, True)
        """
        gain = self.take_on(cores) - self.take_compiled(cores, in_bfloat16)
        return steps * gain > _LEAST + _MARGIN * self.seconds_compiling

    def _take(self, rates: _Rates) -> float:
        near = self.flops - self.convolutions - self.lowered - self.large - self.far
        return (rates.step + rates.node * self.nodes + rates.flop * near + rates.convolution * self.convolutions
                + rates.lowered * self.lowered + rates.large * self.large + rates.far * self.far
                + rates.number * self.numbers + rates.row * self.rows)


@cache
def _is_amd() -> bool:
    """Whether this is a processor of AMD."""
    with suppress(OSError):  # There is no such file but on Linux.
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return False


def estimate_cost(outputs: Iterable[Value], rows: Collection[Value]) -> StepCost:
    """Estimate the work of a step.

    Parameters
    ----------
    outputs : iterable of Value
        The outputs of the step, with static sizes.
    rows : collection of Value
        Its inputs that are batches of rows.

    Returns
    -------
    StepCost

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x, w = variable("x", "float32", [10, 20]), variable("w", "float32", [20, 1])
    >>> estimate_cost([x @ w], [x])
    StepCost(nodes=1, flops=400, numbers=230, rows=10, length=1, products=1, convolutions=0, lowered=0, large=0, far=0,
              shared=0)
    """
    counted = list(_walk(topological(list(outputs)), 1))
    computing = [(node, runs) for node, runs in counted if node.op_type not in VIEWS]
    flops = {node: runs * count_flops([node]) for node, runs in computing if not node.bodies}
    kinds = Counter[str]()
    for node, count in flops.items():
        if node.op_type in ("Conv", "ConvTranspose"):
            is_single = node.outputs[0].dtype == np.float32
            kinds["lowered" if not is_single else "large" if _is_large(node) else "convolutions"] += count
        elif node.op_type in PRODUCTS:
            kinds["far"] += count * (max(map(_size, [*node.reads, *node.outputs])) > _FAR)
            kinds["shared"] += count * (count >= _SHARED)
    return StepCost(
        nodes=sum(runs for _, runs in computing),
        flops=sum(flops.values()), **kinds,
        numbers=sum(runs * _count_numbers(node) for node, runs in computing if not node.bodies),
        rows=sum(_sizes(v)[0] for v in rows),
        length=len(counted),
        products=sum(node.op_type in PRODUCTS and count_flops([node]) < 2 * LARGE for node, _ in counted))


def _walk(nodes: Iterable[Node], runs: int) -> Iterator[tuple[Node, int]]:
    """Nodes, also of their bodies, with the number of runs of each."""
    for node in nodes:
        yield node, runs
        for body in node.bodies:
            yield from _walk(body.nodes, runs * count_runs(node))


def _is_large(node: Node) -> bool:
    """Whether a convolution has so many channels and outputs that the kernels of native/convolutions.c compute it."""
    (images, *_), (outputs, depth, *taps) = (_sizes(v) for v in node.reads[:2])
    _, _, *places = _sizes(node.outputs[0])
    # In the gradient by kernels, which has more taps than places, the images are channels.
    channels = images if prod(taps) > prod(places) else depth
    return len(taps) <= 2 and min(outputs, channels) >= _FULL and _size(node.outputs[0]) >= _FULL**2


def _count_numbers(node: Node) -> int:
    """How many numbers a node reads and writes."""
    written = sum(map(_size, node.outputs))
    return 2 * written if node.op_type in _SELECTING else written + sum(map(_size, node.reads))


def _sizes(v: Value) -> list[int]:
    """The shape of a value, with 1 for sizes that are not known."""
    return [d if isinstance(d, int) else 1 for d in v.shape or ()]


def _size(v: Value) -> int:
    return prod(_sizes(v))
