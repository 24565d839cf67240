// The manifest of a training kit.

import { KitError, ensure, isCount } from "./safetensors.mjs";

const isText = (value) => typeof value === "string";
const isSize = (value) => isCount(value) && value > 0;
const isFile = (value) => isText(value) && value.length < 256 && !["", ".", ".."].includes(value) &&
  !/[/\\\p{Cc}]/u.test(value);
const isLimit = (value) => value === undefined || value === null || Number.isSafeInteger(value);
const isStep = ({ file, batch_size: size }) => isFile(file) && (size === null || isSize(size));
const isTensor = ({ name, dtype, shape, low, high, ignored }) => [name, dtype].every(isText) &&
  shape.every((size) => isText(size) || isCount(size)) && [low, high, ignored].every(isLimit);

/** Whether all is there that a runner reads; an error of any kind where it is not. */
function isSound({ format, version, batch_size: size, steps, inputs, outputs, state, model }) {
  const names = new Set(state.tensors.map(({ name }) => name));
  return format === "ortpartial.kit" && version === 1 && isSize(size) && isFile(state.file) && isFile(model.file) &&
    steps.length > 0 && steps.every(isStep) &&
    [inputs, outputs, state.tensors].every((tensors) => tensors.length > 0 && tensors.every(isTensor)) &&
    inputs.every(({ shape }) => shape.length > 0) && names.size === state.tensors.length &&
    model.weights.every(({ name, offset }) => names.has(name) && isCount(offset));
}

/** Reads the bytes of kit.json. */
export function readManifest(bytes) {
  let manifest, isNewer, sound;
  try {
    manifest = JSON.parse(new TextDecoder().decode(bytes));
    isNewer = manifest.format === "ortpartial.kit" && Number.isInteger(manifest.version) && manifest.version > 1;
    sound = isNewer || isSound(manifest);
  } catch (cause) {
    throw new KitError("kit.json is no manifest of a training kit.", { cause });
  }
  if (isNewer) { // a version of another type may have no text: brackets in brackets
    throw new KitError(`kit.json is of version ${manifest.version}, and this runner reads version 1: take the runner ` +
      "that was exported with the kit.");
  }
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
