// Trains a training kit in Node: node train.mjs KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]

import { readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import ort from "onnxruntime-node";
import { replaceFile, runProgram } from "./files.mjs";
import { TrainingKit } from "./kit.mjs";
import { readTensors } from "./safetensors.mjs";

async function main(folder, dataPath, ...numbers) {
  const kit = await TrainingKit.open(ort, (name) => readFile(join(folder, name)));
  const data = readTensors(await readFile(dataPath), basename(dataPath));
  const [steps = 100, batchSize = kit.manifest.batch_size, seed = 0] = numbers.map(Number);
  const last = kit.stepsTaken + steps;
  const onStep = (step, loss) => {
    if (step % 10 === 0 || step === last) console.log(`step ${step}: loss ${loss.toPrecision(7)}`);
  };
  await kit.train(data, { steps, batchSize, seed, onStep });
  await replaceFile(join(folder, kit.manifest.state.file), kit.saveState());
}

const isWhole = (text) => /^\d+$/.test(text) && Number(text) < 2 ** 32;
const values = process.argv.slice(2);
const areSound = values.length >= 2 && values.length <= 5 && values.slice(2).every(isWhole) && Number(values[3]) !== 0;
await runProgram(main, values, areSound, "node train.mjs KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]");
