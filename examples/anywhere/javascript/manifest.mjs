// The manifest of a training kit.

import { ensure } from "./safetensors.mjs";

const isText = (value) => typeof value === "string";
const isCount = (value) => Number.isInteger(value) && value > 0;
const isFile = (value) => isText(value) && !["", ".", ".."].includes(value) && !/[/\\]/.test(value);
const isTensor = ({ name, dtype, shape }) => [name, dtype].every(isText) && Array.isArray(shape);

/** Whether all is there that a runner reads; an error of any kind where it is not. */
function isSound({ format, version, batch_size: size, steps, inputs, outputs, state, model }) {
  return format === "ortpartial.kit" && version === 1 && isCount(size) && isFile(state.file) && isFile(model.file) &&
    steps.every((step) => isFile(step.file) && (step.batch_size === null || isCount(step.batch_size))) &&
    [inputs, outputs, state.tensors].every((tensors) => tensors.length > 0 && tensors.every(isTensor)) &&
    model.weights.every(({ name, offset }) => isText(name) && Number.isInteger(offset) && offset >= 0);
}

/** Reads the bytes of kit.json. */
export function readManifest(bytes) {
  let manifest, sound;
  try {
    manifest = JSON.parse(new TextDecoder().decode(bytes));
    sound = isSound(manifest);
  } catch {
    sound = false;
  }
  ensure(manifest?.format !== "ortpartial.kit" || !(manifest.version > 1), "kit.json is of version " +
    `${manifest?.version}, and this runner reads version 1: take the runner that was exported with the kit.`);
  ensure(sound, "kit.json is no manifest of a training kit.");
  return manifest;
}

/** The file of the step for batches of so many rows. */
export function findStep({ steps }, rows) {
  const sizes = steps.map((step) => step.batch_size);
  const index = sizes.indexOf(sizes.includes(rows) ? rows : null);
  ensure(index >= 0, `The kit has steps for batches of ${sizes.join(" or ")} rows, not of ${rows}.`);
  return steps[index].file;
}
