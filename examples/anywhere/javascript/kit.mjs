// Trains a training kit wherever onnxruntime runs JavaScript: in a page, a Web Worker or Node.
//   const kit = await TrainingKit.open(ort, async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer()));
//   await kit.train(readTensors(bytes), { steps: 100, onStep: (step, loss) => console.log(step, loss) });

import { findStep, readManifest } from "./manifest.mjs";
import { checkRows, drawBatches, takeInputs, takeRows } from "./rows.mjs";
import { ensure, overwrite } from "./safetensors.mjs";
import { Predictor, openSession, openStep, readFile, runSession } from "./session.mjs";
import { readState, replaceTensors, writeState } from "./state.mjs";

export class TrainingKit {
  #ort; #read; #options; #state; #sessions = {}; #predictor = new Predictor();

  /** Opens a kit: `read(name)` returns the bytes of a file of it, or a promise; `options` are those of its sessions. */
  static async open(ort, read, options = {}) {
    const kit = new TrainingKit();
    [kit.#ort, kit.#options, kit.#read] = [ort, options, (name) => readFile(name, read)];
    kit.manifest = readManifest(await kit.#read("kit.json"));
    kit.inputs = kit.manifest.inputs;
    kit.loadState(await kit.#read(kit.manifest.state.file));
    return kit;
  }

  get stepsTaken() {
    return this.#state.steps;
  }

  /** Goes on from the bytes of a state file. */
  loadState(bytes) {
    this.#state = readState(bytes, this.manifest.state);
  }

  /** The bytes of a state file. */
  saveState() {
    return writeState(this.#state);
  }

  /** The bytes of the inference model, with the weights as they are now. */
  async model() {
    const { file } = this.manifest.model, bytes = await this.#read(file), weights = this.#weights();
    ensure(weights.every(({ data, offset }) => offset + data.byteLength <= bytes.length),
      `${file} is not the model of kit.json: it ends before its weights do.`);
    return overwrite(bytes, weights);
  }

  /** Goes on from the weights of such a model; the optimizer keeps its state. */
  async loadModel(bytes) {
    const model = await this.model();
    ensure(bytes.length === model.length && overwrite(bytes, this.#weights()).every((byte, i) => byte === model[i]),
      "This is no model of the kit: it differs in more than its weights.");
    for (const { name, data, offset } of this.#weights()) {
      const { buffer } = new Uint8Array(bytes.subarray(offset, offset + data.byteLength)); // a copy
      this.#state.tensors[name].data = new data.constructor(buffer);
    }
  }

  /** The outputs of the model for rows, by name, with the weights as they are now. */
  async predict(data) {
    const { file } = this.manifest.model, open = () => openSession(this.#ort, file, this.model(), this.#options);
    const session = await this.#predictor.open(this.#weights(), open);
    const results = await runSession(this.#ort, file, session, takeInputs(data, this.inputs, session.inputNames));
    return Object.fromEntries(results.map((result, i) => [session.outputNames[i], result]));
  }

  #weights() {
    const { tensors } = this.#state;
    return this.manifest.model.weights.map(({ name, offset }) => ({ name, data: tensors[name].data, offset }));
  }

  /** Trains on a batch, and returns its loss. The next call must wait for it. */
  async step(batch) {
    const [file, session] = await this.#open(checkRows(batch, this.inputs));
    const state = this.#state, held = this.manifest.state.tensors.map(({ name }) => state.tensors[name]);
    const read = [...this.inputs.map(({ name }) => batch[name]), ...held];
    const arrays = (await runSession(this.#ort, file, session, read)).map(({ data }) => data);
    ensure(Number.isFinite(arrays[0][0]), `The loss of step ${state.steps + 1} is not finite: the kit needs a ` +
      "smaller step size, or the data hold numbers that are none.");
    replaceTensors(held, arrays.slice(this.manifest.outputs.length), file);
    state.steps += 1;
    return arrays[0][0];
  }

  /** Trains on batches of shuffled rows; it ends early where `onStep(step, loss)` returns false. */
  async train(data, { steps = 100, batchSize = this.manifest.batch_size, seed = 0, onStep } = {}) {
    await this.#open(batchSize);
    const count = checkRows(data, this.inputs);
    for (const rows of drawBatches(seed, count, batchSize, this.stepsTaken, steps)) {
      const batch = this.inputs.map(({ name }) => [name, takeRows(data[name], rows)]);
      const loss = await this.step(Object.fromEntries(batch));
      if ((await onStep?.(this.stepsTaken, loss)) === false) break;
    }
  }

  /** The file of the step for batches of so many rows, and its session. */
  async #open(rows) {
    const file = findStep(this.manifest, rows);
    this.#sessions[file] ??= await openStep(this.#ort, file, this.#read(file), this.manifest, this.#options);
    return [file, this.#sessions[file]];
  }
}
