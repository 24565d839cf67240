"""The README of a training kit: its files, its data, and how it trains and predicts in each language."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from string import Template

from ortpartial.texts import printable

from .manifest import Manifest, Tensor

__all__ = ["quote_name", "write_readme"]

_FILES = {
    Manifest.NAME: "names, shapes and the order of bindings",
    Manifest.MODEL: "the model, with the weights of the export",
    Manifest.STATE: "weights, optimizer states and counters: where the training stands",
}

_HEAD = Template("""\
# A training kit

One step of a training as a plain ONNX graph, which reads a batch of rows and the state, and returns the loss and the
next state. It trains wherever there is onnxruntime, and goes on from where any other runner has saved it.

| file | bytes | what it is |
|---|---|---|
$table

## The data

| input | type | shape | values | read in |
|---|---|---|---|---|
$inputs

The first axis counts the rows. The model returns $outputs. Programs read a safetensors file with a tensor for each
input; from Python:

```python
import numpy as np
from safetensors.numpy import save_file

save_file({
$arrays
}, "data.safetensors")
```

Each program trains from where the state stands, $batch rows a step, and saves the state; then it writes
the outputs for all rows to `predictions.safetensors`, and the model with the weights of now to `trained.onnx`.
""")

_TAIL = Template("""\
## In Python

```python
from ortpartial import run_kit

losses = run_kit(".", "data.safetensors", 100, predictions="predictions.safetensors", model="trained.onnx")
```

## The state

| tensor | type | shape |
|---|---|---|
$state
""")

_RELEASE = """\
onnxruntime: `ORT` is the folder of a release, with `include` and `lib` in it. For Linux on x64:

```bash
curl -LO https://github.com/microsoft/onnxruntime/releases/download/v1.21.0/onnxruntime-linux-x64-1.21.0.tgz
tar xzf onnxruntime-linux-x64-1.21.0.tgz
export ORT=$PWD/onnxruntime-linux-x64-1.21.0
```

The releases for other systems have names such as `onnxruntime-osx-arm64-1.21.0.tgz`.
"""

_LANGUAGES = {
    "web": ("a page", """\
```bash
npm install onnxruntime-web@1.30.0
```

```js
import * as ort from "onnxruntime-web";
import { TrainingKit } from "./kit.mjs";

const kit = await TrainingKit.open(ort, async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer()));
const data = {
$js
};
await kit.train(data, { steps: 100, batchSize: 1, onStep: (step, loss) => console.log(step, loss) });
const outputs = await kit.predict(data); // $outputs, each { dtype, shape, data }
const model = await kit.model(); // the bytes of the ONNX file with the weights of now
```
"""),
    "node": ("Node", """\
```bash
npm install --ignore-scripts
node train.mjs . data.safetensors 100
node predict.mjs . data.safetensors predictions.safetensors trained.onnx
```
"""),
    "c": ("C", _RELEASE + """
```bash
sudo apt-get install gcc libcjson-dev zlib1g-dev
for program in train predict; do
  gcc -std=c11 -O2 $program.c -I$ORT/include -L$ORT/lib -lonnxruntime -Wl,-rpath,$ORT/lib -lcjson -lz -o $program
done
./train . data.safetensors 100
./predict . data.safetensors predictions.safetensors trained.onnx
```
"""),
    "cpp": ("C++", _RELEASE + """
```bash
sudo apt-get install g++ nlohmann-json3-dev zlib1g-dev
for program in train predict; do
  g++ -std=c++17 -O2 $program.cpp -I$ORT/include -L$ORT/lib -lonnxruntime -Wl,-rpath,$ORT/lib -lz -o $program
done
./train . data.safetensors 100
./predict . data.safetensors predictions.safetensors trained.onnx
```
"""),
    "java": ("Java", """\
```bash
mkdir -p lib
maven=https://repo1.maven.org/maven2
curl -L --output-dir lib -O $maven/com/microsoft/onnxruntime/onnxruntime/1.21.0/onnxruntime-1.21.0.jar
for name in databind core annotations; do
  curl -L --output-dir lib -O $maven/com/fasterxml/jackson/core/jackson-$name/2.17.2/jackson-$name-2.17.2.jar
done
javac -cp 'lib/*' *.java
java -cp 'lib/*:.' Train . data.safetensors 100
java -cp 'lib/*:.' Predict . data.safetensors predictions.safetensors trained.onnx
```
"""),
}


def quote_name(name: str) -> str:
    """A name of the model in a table of Markdown, where it is nothing but text.

    Examples
    --------
    >>> quote_name("layer.0/w"), quote_name("a|b")
    ('`layer.0/w`', 'a&#124;b')
    """
    if re.fullmatch(r"[\w./:-]+", name, re.ASCII):
        return f"`{name}`"
    return "".join(c if c.isalnum() or c in " ./:-" else f"&#{ord(c)};" for c in printable(name))


def write_readme(manifest: Manifest, files: Mapping[str, bytes], targets: Iterable[str],
                 read: Sequence[str], predicted: Sequence[str]) -> str:
    """Write the README of a kit.

    Parameters
    ----------
    manifest : Manifest
        The manifest of the kit.
    files : dict of str to bytes
        Its files.
    targets : iterable of str
        The languages that it has runners for.
    read, predicted : sequence of str
        The inputs and the outputs of the model.

    Returns
    -------
    str
    """
    steps = {file: f"a training step, for batches of {'any number of' if size is None else size} rows"
             for size, file in manifest.steps.items()}
    table = [f"| `{name}` | {len(data):,} | {({**_FILES, **steps}).get(name, 'the runner')} |"
             for name, data in files.items()]
    inputs = [f"| {quote_name(t.name)} | {t.dtype} | {_shape(t)} | {_range(t)} | "
              f"{'training and predictions' if t.name in read else 'training'} |" for t in manifest.inputs]
    state = [f"| {quote_name(t.name)} | {t.dtype} | {_shape(t)} |" for t in manifest.state]
    arrays = "\n".join(f'    {json.dumps(t.name)}: np.zeros({_example(t)}, "{t.dtype}"),  # yours'
                       for t in manifest.inputs)
    sections = [_HEAD.substitute(
        table="\n".join(table), inputs="\n".join(inputs), outputs=", ".join(map(quote_name, predicted)), arrays=arrays,
        batch=manifest.batch_size)]
    values = {"$js": "\n".join(f"  {json.dumps(t.name)}: {_js(t)}" for t in manifest.inputs),
              "$outputs": ", ".join(json.dumps(n) for n in predicted),
              "batchSize: 1": f"batchSize: {manifest.batch_size}"}
    for target in targets:
        title, text = _LANGUAGES[target]
        for key, value in values.items():
            text = text.replace(key, value)
        sections.append(f"## In {title}\n\n{text}")
    sections.append(_TAIL.substitute(state="\n".join(state)))
    return "\n".join(sections)


def _shape(tensor: Tensor) -> str:
    return " × ".join(quote_name(s) if isinstance(s, str) else str(s) for s in tensor.shape) or "one number"


def _range(tensor: Tensor) -> str:
    if tensor.low is None:
        return "any"
    return f"{tensor.low} to {tensor.high}" + ("" if tensor.ignored is None else f", {tensor.ignored} does not count")


def _example(tensor: Tensor) -> str:
    """The shape of 100 rows, or of as many as the step takes; a size that is not known is 8."""
    rows, *sizes = (8 if isinstance(s, str) else s for s in tensor.shape)
    return str((100 if isinstance(tensor.shape[0], str) else rows, *sizes))


def _js(tensor: Tensor) -> str:
    """A tensor of zeros in JavaScript."""
    shape = _example(tensor).strip("()").rstrip(",")
    count = " * ".join(shape.split(", "))
    array = {"int64": "BigInt64Array", "uint64": "BigUint64Array", "float64": "Float64Array", "bool": "Uint8Array",
             "float16": "Uint16Array"}.get(tensor.dtype, f"{tensor.dtype.capitalize()}Array")
    return f'{{ dtype: "{tensor.dtype}", shape: [{shape}], data: new {array}({count}) }}, // yours'
