// Trains kits in one process: node try_kits.mjs FOLDER RUNTIME, with the runtime from the packages of a folder, and a
// list of { kit, data, steps, batchSize, seed, load, save, until } on stdin. Prints for each its losses, or its error.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, join } from "node:path";
import { TrainingKit } from "../../../examples/anywhere/javascript/kit.mjs";
import { readTensors } from "../../../examples/anywhere/javascript/safetensors.mjs";

const [folder, runtime] = process.argv.slice(2);
const ort = createRequire(join(folder, "package.json"))(runtime);
if (runtime === "onnxruntime-web") ort.env.wasm.numThreads = 1;

async function train({ kit: path, data, load, save, until, ...settings }) {
  const losses = [];
  const kit = await TrainingKit.open(ort, async (name) => readFileSync(join(path, name)), { intraOpNumThreads: 1 });
  if (load) await kit.loadModel(readFileSync(load));
  const tensors = readTensors(readFileSync(data), basename(data));
  await kit.train(tensors, { ...settings, onStep: async (step, loss) => losses.push(loss) !== until });
  if (save) {
    writeFileSync(join(save, "state.safetensors"), kit.saveState());
    writeFileSync(join(save, "model.onnx"), await kit.model());
  }
  return { losses, stepsTaken: kit.stepsTaken };
}

const results = [];
for (const request of JSON.parse(readFileSync(0, "utf8"))) {
  results.push(await train(request).catch(({ message }) => ({ error: message })));
}
console.log(JSON.stringify(results));
