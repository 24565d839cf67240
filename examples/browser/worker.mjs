// Trains the kit beside the page, so that the page stays responsive. It answers a call { id, method, args } by
// { id, value } or { id, error }, tells of a training by { progress }, and of what fails meanwhile by { warning }.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";
import * as store from "./store.mjs";

ort.env.wasm.numThreads = 1; // more need a server that isolates the page
ort.env.logLevel = "fatal";

const REPORT = 100; // milliseconds between reports of a training,
const SAVE = 500; // and between copies of it in the browser's store

let folder, kit, data, place; // the place of this training in the browser's store
let losses = []; // of the latest steps
let goal = null; // what is being trained: until which step, in which batches, on which digits
let watched = { images: new Float32Array() }; // what the page wants to know the scores of
const files = new Map();

async function read(name) {
  if (files.has(name)) return files.get(name);
  const response = await fetch(new URL(name, folder), { cache: "no-cache" });
  if (!response.ok) throw new Error(`${name} is missing: write the kit with make_kit.py, then reload this page.`);
  files.set(name, new Uint8Array(await response.arrayBuffer()));
  return files.get(name);
}

/** The rows to train on: those of the kit and about as many of the person's, or the person's alone. */
function mix(digits, alone, batch) {
  if (!digits?.length) return data;
  const [[images, xs], [labels, ys]] = kit.manifest.inputs.map(({ name }) => [name, data[name]]);
  const times = Math.ceil((alone ? batch : ys.shape[0]) / digits.length);
  const join = ({ dtype, shape: [count, ...shape], data: numbers }, more) => {
    const size = numbers.length / count;
    const joined = [...(alone ? [] : numbers), ...Array(times).fill(more).flat()];
    return { dtype, shape: [joined.length / size, ...shape], data: numbers.constructor.from(joined) };
  };
  const pixels = digits.flatMap((digit) => [...digit.pixels]);
  return { [images]: join(xs, pixels), [labels]: join(ys, digits.map(({ label }) => BigInt(label))) };
}

async function computeScores() {
  const { images, view } = watched;
  if (!images.length) return { view, scores: new Float32Array() };
  const rows = { dtype: "float32", shape: [images.length / 64, 64], data: images };
  const [scores] = Object.values(await kit.predict({ [kit.manifest.inputs[0].name]: rows }));
  return { view, scores: scores.data };
}

/** The scores of the watched images, ten for each. One call waits for the other: there is one model. */
let turn = Promise.resolve();
const predict = () => (turn = turn.catch(() => {}).then(computeScores));

async function keep() {
  const training = { state: kit.saveState(), losses: Float32Array.from(losses), goal };
  await store.put(place, training).catch(({ message }) => postMessage({ warning: message }));
}

const report = async () =>
  postMessage({ progress: { steps: kit.stepsTaken, losses: Float32Array.from(losses), ...(await predict()) } });

/** After the weights have changed other than by a step. */
async function begin() {
  losses = [];
  await keep();
  await report();
}

const methods = {
  /** Opens a kit, and goes on from what the browser has kept of its training. */
  async open(address) {
    folder = address;
    files.clear();
    await read("kit.json"); // where there is no kit, its sentence is the clearest
    const { TrainingKit } = await import(new URL("kit.mjs", folder));
    const { readTensors } = await import(new URL("safetensors.mjs", folder));
    kit = await TrainingKit.open(ort, read);
    data = readTensors(await read("data.safetensors"), "data.safetensors");
    // A kit that was written anew has another checksum, and starts from its own state.
    const [, checksum] = new TextDecoder("latin1").decode(kit.saveState()).match(/"crc32":"(\w+)"/);
    place = `${folder} ${checksum}`;
    const kept = await store.get(place);
    try {
      if (kept) kit.loadState(kept.state);
    } catch {
      await store.put(place, undefined);
      throw new Error("What the browser has kept of the training is damaged: reload this page to start over.");
    }
    losses = [...(kept?.losses ?? [])];
    const { stepsTaken: steps, manifest: { batch_size: batch } } = kit;
    return { steps, batch, losses: Float32Array.from(losses), goal: kept?.goal };
  },

  /** Trains on the digits of a person until the kit has taken `steps` steps, or until it is stopped. */
  async train({ steps, batch, alone }, digits) {
    goal = { steps, batch, alone };
    let [reported, saved] = [0, 0];
    const onStep = async (step, loss) => {
      losses.push(loss);
      const now = performance.now();
      if (now - saved > SAVE) saved = (await keep(), now);
      if (now - reported > REPORT) {
        reported = (await report(), now);
        await new Promise((resolve) => setTimeout(resolve)); // calls of the page are heard here
      }
      return goal !== null;
    };
    try {
      await kit.train(mix(digits, alone, batch), { steps: steps - kit.stepsTaken, batchSize: batch, onStep });
    } finally {
      goal = null;
      await keep();
      await report();
    }
  },

  stop: () => void (goal = null),

  /** The scores of images, 64 pixels each, which come with each report from now on. */
  async watch(images, view) {
    watched = { images, view };
    return predict();
  },

  model: () => kit.model(),

  state: () => kit.saveState(),

  /** Goes on from a file that was downloaded: a model or a state. */
  async load(bytes, name) {
    try {
      await (name.endsWith(".onnx") ? kit.loadModel(bytes) : kit.loadState(bytes));
    } catch {
      throw new Error(`${name} is no model or state of this page, or a damaged one.`);
    }
    await begin();
  },

  /** Goes back to what the kit was written with. */
  async restart() {
    kit.loadState(await read(kit.manifest.state.file));
    await begin();
  },
};

addEventListener("message", async ({ data: { id, method, args } }) => {
  try {
    postMessage({ id, value: await methods[method](...args) });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
});
