// The rows of a training: checked, shuffled, and taken for a batch.

import { ensure } from "./safetensors.mjs";

/** Checks data against the inputs of a manifest, and returns the number of their rows. */
export function checkRows(data, inputs) {
  for (const { name, dtype, shape, low, high, ignored } of inputs) {
    ensure(Object.hasOwn(data, name) && data[name], `The data lack the input '${name}'.`);
    const tensor = data[name];
    ensure(tensor.dtype === dtype, `Input '${name}' is ${tensor.dtype}, where ${dtype} is expected.`);
    const fits = (size, axis) => axis === 0 || typeof size === "string" || size === tensor.shape[axis];
    ensure(tensor.shape.length === shape.length && shape.every(fits),
      `Input '${name}' has the shape [${tensor.shape.join(", ")}], where [${shape.join(", ")}] is expected.`);
    ensure(tensor.data.length > 0 || tensor.shape[0] === 0, `Input '${name}' has no number in its rows.`);
    if (typeof low !== "number" || typeof high !== "number") continue;
    let [least, most] = [Infinity, -Infinity];
    for (const element of tensor.data) {
      const value = Number(element); // int64 is BigInt
      if (value !== ignored) [least, most] = [Math.min(least, value), Math.max(most, value)];
    }
    const unless = typeof ignored !== "number" ? "" : `, or ${ignored} for what does not count`;
    ensure(least >= low && most <= high,
      `Input '${name}' has values from ${least} to ${most}, where ${low} to ${high} are expected${unless}.`);
  }
  const rows = inputs.map(({ name }) => data[name].shape[0]);
  ensure(rows.every((count) => count === rows[0]), "The inputs have different numbers of rows: " +
    `${inputs.map(({ name }, i) => `'${name}' has ${rows[i]}`).join(", ")}.`);
  return rows[0];
}

/** The rows of an epoch in random order, which is the same in every language. */
export function drawOrder(seed, epoch, count) {
  const rows = Uint32Array.from({ length: count }, (_, i) => i);
  let s = seed ^ Math.imul(epoch, 0x85ebca6b);
  for (let i = count - 1; i > 0; i--) {
    s = (s + 0x9e3779b9) | 0;
    let z = Math.imul(s ^ (s >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    const j = ((z ^ (z >>> 15)) >>> 0) % (i + 1);
    [rows[i], rows[j]] = [rows[j], rows[i]];
  }
  return rows;
}

/** The rows of each of some steps, from the one of a number on. */
export function* drawBatches(seed, count, size, first, steps) {
  ensure(count >= size, `The data have ${count} rows, fewer than a batch of ${size}.`);
  const stepsOfEpoch = Math.floor(count / size);
  let epoch, order;
  for (let k = first; k < first + steps; k++) {
    if (epoch !== Math.floor(k / stepsOfEpoch)) {
      epoch = Math.floor(k / stepsOfEpoch);
      order = drawOrder(seed, epoch, count);
    }
    const place = k % stepsOfEpoch;
    yield order.subarray(place * size, (place + 1) * size);
  }
}

/** Rows of a tensor. */
export function takeRows({ dtype, shape: [count, ...shape], data }, rows) {
  const size = data.length / count;
  const taken = new data.constructor(rows.length * size);
  rows.forEach((row, i) => taken.set(data.subarray(row * size, (row + 1) * size), i * size));
  return { dtype, shape: [rows.length, ...shape], data: taken };
}

/** The tensors that a model reads, by their names; those that a step reads, too, are checked as for it. */
export function takeInputs(data, inputs, names) {
  for (const name of names) ensure(Object.hasOwn(data, name) && data[name], `The data lack the input '${name}'.`);
  checkRows(data, inputs.filter(({ name }) => names.includes(name)));
  return names.map((name) => data[name]);
}
