// Sessions of onnxruntime, on tensors as files of safetensors have them: { dtype, shape, data }.

import { KitError, ensure } from "./safetensors.mjs";

/** Awaits what onnxruntime does with a graph; its errors name the file. */
async function attempt(ort, file, run) {
  try {
    return await run();
  } catch (cause) {
    if (cause instanceof KitError) throw cause;
    const { node, web } = ort.env.versions;
    throw new KitError(`onnxruntime ${node ?? web} cannot run ${file}: ${cause.message}`, { cause });
  }
}

/** The bytes of a file of a kit; errors name it. */
export const readFile = (name, read) => Promise.resolve(name).then(read).catch((cause) => {
  throw new KitError(`${name} of the kit cannot be read: ${cause?.message ?? cause}`, { cause });
});

/** Opens a graph, whose bytes may be a promise. */
export const openSession = (ort, file, bytes, options) =>
  attempt(ort, file, async () => ort.InferenceSession.create(await bytes, options));

/** Opens the step of a kit, whose inputs and outputs are those of its manifest. */
export async function openStep(ort, file, bytes, { inputs, outputs, state }, options) {
  const session = await openSession(ort, file, bytes, options);
  const names = [...inputs, ...state.tensors].map(({ name }) => name);
  ensure(`${session.inputNames}` === `${names}` && session.outputNames.length === outputs.length + state.tensors.length,
    `${file} is damaged: its inputs and outputs are not those of kit.json.`);
  return session;
}

/** Runs the session of a file on tensors in the order of its inputs; its results are in that of its outputs. */
export const runSession = (ort, file, session, tensors) => attempt(ort, file, async () => {
  const inputs = tensors.map(({ dtype, data, shape }) => new ort.Tensor(dtype, data, shape));
  const results = await session.run(Object.fromEntries(inputs.map((tensor, i) => [session.inputNames[i], tensor])));
  return session.outputNames.map((name) => {
    const { type: dtype, dims: shape, data } = results[name];
    return { dtype, shape, data };
  });
});

/** Keeps the session of a model until its weights are others. */
export class Predictor {
  #session; #weights = [];

  /** The session for some weights: the former one, or what `open` returns. */
  async open(weights, open) {
    if (!this.#session || weights.some(({ data }, i) => data !== this.#weights[i].data)) {
      await this.#session?.release();
      this.#session = undefined; // should it not open
      [this.#session, this.#weights] = [await open(), weights];
    }
    return this.#session;
  }
}
