// The page: what a person draws and sees. The training is in worker.mjs, the drawing in pad.mjs.

import { Pad, show, toPixels } from "./pad.mjs";
import { drawLosses } from "./chart.mjs";
import * as store from "./store.mjs";

const $ = (id) => document.getElementById(id);
const element = (name, ...children) => {
  const parent = document.createElement(name);
  parent.append(...children);
  return parent;
};
const percent = (p) => `${Math.round(100 * p)} %`;

// --- The worker ---

const worker = new Worker("worker.mjs", { type: "module" });
const calls = new Map();
let called = 0;

function call(method, ...args) {
  return new Promise((resolve, reject) => {
    calls.set(++called, { resolve, reject });
    worker.postMessage({ id: called, method, args });
  });
}

worker.addEventListener("message", ({ data: { id, value, error, progress, warning } }) => {
  if (progress) return showProgress(progress);
  if (warning) return fail(new Error(warning));
  const { resolve, reject } = calls.get(id);
  calls.delete(id);
  error === undefined ? resolve(value) : reject(new Error(error));
});
worker.addEventListener("error", (event) => {
  event.preventDefault();
  fail(new Error("The training did not start: install onnxruntime-web with npm ci, then reload this page."));
});

function fail(error) {
  if ($("start").disabled) $("status").textContent = ""; // the page has not started
  $("error").firstElementChild.textContent = error.message;
  $("error").hidden = false;
}

/** What a button or a change does: a failure is shown as its sentence. */
const act = (action) => async (...args) => {
  $("error").hidden = true;
  try {
    await action(...args);
  } catch (error) {
    fail(error);
  }
};

// --- The drawing and the digits ---

let digits = []; // { pixels, label }
let current = null; // the digit that the drawing has become
let steps = 0;

const pad = new Pad($("pad"), act(async () => {
  if (!pad.complete) choose(null);
  $("pad-hint").hidden = pad.strokes.length > 0;
  $("labels").disabled = !pad.strokes.length;
  await watch();
}));

function choose(digit) {
  current = digit;
  [...$("labels").querySelectorAll("button")].forEach((button, i) =>
    button.setAttribute("aria-pressed", String(i === digit?.label)));
}

async function label(value) {
  if (!pad.strokes.length) return;
  if (!current) digits.push({ pixels: toPixels(pad.strokes) });
  choose(Object.assign(current ?? digits.at(-1), { label: value }));
  pad.complete = true;
  await keepDigits();
}

async function keepDigits() {
  showDigits();
  await Promise.all([watch(), store.put("digits", digits)]);
}

function showDigits() {
  $("none").hidden = digits.length > 0;
  $("digits").replaceChildren(...digits.map((digit) => {
    const canvas = Object.assign(element("canvas"), { width: 8, height: 8 });
    canvas.setAttribute("role", "img");
    const remove = Object.assign(element("button", "×"), { type: "button" });
    remove.setAttribute("aria-label", `Remove this ${digit.label}`);
    remove.addEventListener("click", act(async () => {
      digits = digits.filter((other) => other !== digit);
      if (digit === current) choose(null);
      await keepDigits();
    }));
    return element("li", canvas, element("span"), remove);
  }));
  showPixels();
}

/** In the colors of the page, which may be light or dark. */
function showPixels() {
  pad.draw();
  show($("seen"), pad.strokes.length ? toPixels(pad.strokes) : []);
  digits.forEach((digit, i) => show($("digits").children[i].firstElementChild, digit.pixels));
}

// --- What the model thinks ---

let view = 0; // counts what the model was asked about
let asking = null; // while an answer is on its way

/** Ask for the model's scores of the drawing, if there is one, and of all digits: again if they change meanwhile. */
function watch() {
  view += 1;
  return (asking ??= ask().finally(() => (asking = null)));
}

async function ask() {
  let asked;
  do {
    asked = view;
    const drawn = pad.strokes.length ? [toPixels(pad.strokes)] : [];
    show($("seen"), drawn[0] ?? []);
    const images = [...drawn, ...digits.map(({ pixels }) => pixels)];
    showScores(await call("watch", Float32Array.from(images.flatMap((pixels) => [...pixels])), asked));
  } while (asked !== view);
}

function softmax(scores) {
  const powers = scores.map((score) => Math.exp(score - Math.max(...scores)));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

function showScores({ scores, view: asked }) {
  if (asked !== view) return; // the drawing or the digits have changed since
  const rows = Array.from({ length: scores.length / 10 }, (_, i) => softmax(scores.subarray(10 * i, 10 * i + 10)));
  const taken = rows.splice(rows.length - digits.length).map((row) => row.indexOf(Math.max(...row)));
  showBars(rows[0]); // those of the drawing
  [...$("digits").children].forEach((item, i) => {
    const right = taken[i] === digits[i].label;
    item.className = right ? "right" : "wrong";
    item.children[0].setAttribute("aria-label", `A ${digits[i].label}, taken for a ${taken[i]}`);
    item.children[1].textContent = right ? `${digits[i].label} ✓` : `${digits[i].label}, sees ${taken[i]}`;
  });
  const right = taken.filter((value, i) => value === digits[i].label).length;
  $("score").textContent = digits.length ? `${right} of ${digits.length} right` : "–";
}

function showBars(row = new Float32Array(10)) {
  const best = row.indexOf(Math.max(...row));
  const drawn = row[best] > 0;
  [...$("bars").children].forEach((item, i) => {
    item.className = drawn && i === best ? "best" : "";
    item.querySelector("i").style.transform = `scaleX(${row[i]})`;
    item.lastElementChild.textContent = drawn ? percent(row[i]) : "";
  });
  const verdict = `${row[best] < 0.8 ? "Perhaps" : "It is"} a${best === 8 ? "n" : ""} ${best}`;
  if (drawn) $("verdict").replaceChildren(element("strong", verdict), ` ${percent(row[best])} sure`);
  else $("verdict").textContent = "Draw a digit to see.";
}

// --- The training ---

function showProgress({ steps: taken, losses, ...scores }) {
  steps = taken;
  $("step").textContent = steps.toLocaleString("en");
  $("loss").textContent = drawLosses(losses, steps)?.toFixed(3) ?? "–";
  if (scores.scores) showScores(scores);
}

function setTraining(active) {
  $("start").textContent = active ? "Stop" : "Train";
  $("verdict").setAttribute("aria-live", active ? "off" : "polite");
  for (const id of ["save-model", "save-state", "load", "restart", "steps", "batch"]) $(id).disabled = active;
  $("start").dataset.active = active ? "yes" : "";
}

async function train(goal) {
  setTraining(true);
  $("status").textContent = "Training …";
  const before = steps;
  try {
    await call("train", goal, digits);
    $("status").textContent = `Trained ${steps - before === 1 ? "one step" : `${steps - before} steps`}.`;
  } catch (error) {
    $("status").textContent = "The training has stopped.";
    throw error;
  } finally {
    setTraining(false);
  }
}

function download(bytes, name) {
  const address = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  Object.assign(element("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// --- What starts the page ---

for (let value = 0; value < 10; value++) {
  const button = Object.assign(element("button", String(value)), { type: "button" });
  button.addEventListener("click", act(() => label(value)));
  $("labels").append(button);
  const track = Object.assign(element("span", element("i")), { className: "track" });
  $("bars").append(element("li", element("span", String(value)), track, element("span")));
}
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey;
  if (!typing && /^[0-9]$/.test(event.key)) act(label)(Number(event.key));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => showPixels());
$("clear").addEventListener("click", () => pad.clear());
$("error").lastElementChild.addEventListener("click", () => ($("error").hidden = true));
$("controls").addEventListener("submit", (event) => event.preventDefault());
$("controls").addEventListener("submit", act(async () => {
  if ($("start").dataset.active) return call("stop");
  const alone = document.querySelector("input[name=data]:checked").value === "own";
  await train({ steps: steps + $("steps").valueAsNumber, batch: $("batch").valueAsNumber, alone });
}));
$("save-model").addEventListener("click", act(async () => download(await call("model"), "model.onnx")));
$("save-state").addEventListener("click", act(async () => download(await call("state"), "state.safetensors")));
$("load").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", act(async () => {
  const [file] = $("file").files;
  $("file").value = "";
  await call("load", new Uint8Array(await file.arrayBuffer()), file.name);
  $("status").textContent = `Loaded ${file.name}.`;
}));
$("restart").addEventListener("click", act(async () => {
  await call("restart");
  $("status").textContent = "Back to the model from Python.";
}));

$("status").textContent = "Loading …";
await act(async () => {
  const kit = new URLSearchParams(location.search).get("kit") ?? "kit/";
  const { goal, batch, ...progress } = await call("open", new URL(kit, location).href);
  $("batch").value = batch;
  digits = (await store.get("digits")) ?? [];
  showDigits();
  showProgress(progress);
  await watch();
  $("start").disabled = false;
  setTraining(false);
  $("status").textContent = steps ? `Here is your training again, at step ${steps}.` : "Ready.";
  if (goal?.steps > steps) await train(goal); // it was cut off
})();
