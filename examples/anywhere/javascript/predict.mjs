// Runs the model of a training kit in Node: node predict.mjs KIT DATA PREDICTIONS [MODEL]

import { readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import ort from "onnxruntime-node";
import { replaceFile, runProgram } from "./files.mjs";
import { TrainingKit } from "./kit.mjs";
import { readTensors, writeTensors } from "./safetensors.mjs";

async function main(folder, dataPath, predictionsPath, modelPath) {
  const kit = await TrainingKit.open(ort, (name) => readFile(join(folder, name)));
  const predictions = await kit.predict(readTensors(await readFile(dataPath), basename(dataPath)));
  await replaceFile(predictionsPath, writeTensors(predictions));
  if (modelPath) await replaceFile(modelPath, await kit.model());
}

const values = process.argv.slice(2);
await runProgram(main, values, [3, 4].includes(values.length), "node predict.mjs KIT DATA PREDICTIONS [MODEL]");
