// Trains kits in one process: node try_kits.mjs FOLDER RUNTIME, with the runtime from the packages of a folder, and a
// list of { kit, data, steps, batchSize, seed, load, save, until, predict } on stdin. Prints for each its losses, or its error: its sentence, its
// class, and the megabytes that the process has had at most.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, join } from "node:path";
import { TrainingKit } from "../../../examples/anywhere/javascript/kit.mjs";
import { readTensors } from "../../../examples/anywhere/javascript/safetensors.mjs";

const [folder, runtime] = process.argv.slice(2);
const ort = createRequire(join(folder, "package.json"))(runtime);
if (runtime === "onnxruntime-web") ort.env.wasm.numThreads = 1;

async function train({ kit: path, data, load, save, until, predict, ...settings }) {
  const losses = [], predictions = [];
  const kit = await TrainingKit.open(ort, async (name) => readFileSync(join(path, name)), { intraOpNumThreads: 1 });
  if (load) await kit.loadModel(readFileSync(load));
  const tensors = readTensors(readFileSync(data), basename(data));
  const see = async () => predict && predictions.push(Array.from((await kit.predict({ x: tensors.x })).y.data));
  await see();
  const onStep = async (step, loss) => {
    await see();
    return losses.push(loss) !== until;
  };
  await kit.train(tensors, { ...settings, onStep });
  if (save) {
    writeFileSync(join(save, "state.safetensors"), kit.saveState());
    writeFileSync(join(save, "model.onnx"), await kit.model());
  }
  return { losses, stepsTaken: kit.stepsTaken, ...(predict && { predictions }) };
}

const results = [];
for (const request of JSON.parse(readFileSync(0, "utf8"))) {
  results.push(await train(request).catch(({ message, name }) => (
    { error: message, kind: name, memory: process.memoryUsage.rss() / 2 ** 20 })));
}
console.log(JSON.stringify(results));
