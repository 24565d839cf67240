// Sessions of onnxruntime, on tensors as files of safetensors have them: { dtype, shape, data }.

/** Opens a graph, whose bytes may be a promise; errors name its file. */
export async function openSession(ort, file, bytes, options) {
  try {
    return await ort.InferenceSession.create(await bytes, options);
  } catch ({ message }) {
    const { node, web } = ort.env.versions;
    throw new Error(`onnxruntime ${node ?? web} cannot run ${file}: ${message}`);
  }
}

/** Runs a session on tensors in the order of its inputs, and returns its results in that of its outputs. */
export async function runSession(ort, session, tensors) {
  const inputs = tensors.map(({ dtype, data, shape }) => new ort.Tensor(dtype, data, shape));
  const results = await session.run(Object.fromEntries(inputs.map((tensor, i) => [session.inputNames[i], tensor])));
  return session.outputNames.map((name) => {
    const { type: dtype, dims: shape, data } = results[name];
    return { dtype, shape, data };
  });
}

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
