// Train a step that is a plain ONNX model: node train.mjs <folder>, which holds step.onnx, plan.json and arrays in .bin.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import * as ort from "onnxruntime-web";

const folder = process.argv[2];
const plan = JSON.parse(readFileSync(join(folder, "plan.json"), "utf8"));
ort.env.wasm.numThreads = 1;

const kinds = { float32: Float32Array, int64: BigInt64Array };
const array = (name, dtype) => new kinds[dtype](new Uint8Array(readFileSync(join(folder, `${name}.bin`))).buffer);

const data = plan.data.map(({ name, dtype, dims }) => ({ name, dtype, dims, all: array(name, dtype) }));
let state = Object.fromEntries(
  plan.state.map(({ name, dtype, dims }) => [name, new ort.Tensor(dtype, array(name, dtype), dims)]),
);

const session = await ort.InferenceSession.create(readFileSync(join(folder, "step.onnx")));
const losses = [];
for (let k = 0; k < plan.steps; k++) {
  const start = (k * plan.rows) % plan.total;
  const batch = data.map(({ name, dtype, dims, all }) => {
    const size = dims.slice(1).reduce((a, b) => a * b, 1);
    const part = all.slice(start * size, (start + plan.rows) * size);
    return [name, new ort.Tensor(dtype, part, [plan.rows, ...dims.slice(1)])];
  });
  const found = await session.run({ ...Object.fromEntries(batch), ...state });
  state = Object.fromEntries(Object.entries(plan.updates).map(([key, value]) => [key, found[value]]));
  losses.push(Number(found[plan.loss].data[0]));
}
for (const [name, tensor] of Object.entries(state)) {
  writeFileSync(join(folder, `${name}.out.bin`), new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength));
}
console.log(JSON.stringify({ losses, version: ort.env.versions.common }));
