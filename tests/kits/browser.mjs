// A person in front of the page of examples/browser:
//     node browser.mjs <node_modules> <chromium> <address> <folder> <kits>
// What the person saw is written into the folder as report.json, beside the files that were downloaded.

import { createRequire } from "node:module";
import { writeFileSync } from "node:fs";
import { join } from "node:path";

const [modules, chromium, address, folder, kits] = process.argv.slice(2);
const playwright = createRequire(join(modules, "any.js"))("playwright-core");
const report = { problems: [], errors: {} };
const browser = await playwright.chromium.launchPersistentContext(join(folder, "profile"), {
  executablePath: chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
  viewport: { width: 1180, height: 1000 },
});
browser.setDefaultTimeout(20_000);

async function open(path = "") {
  const page = await browser.newPage();
  const note = (problem) => report.problems.push(String(problem));
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && note(message.text()));
  page.on("pageerror", note);
  page.on("requestfailed", (request) => note(`${request.url()}: ${request.failure().errorText}`));
  await page.goto(address + path);
  return page;
}

const text = (page, id) => page.locator(`#${id}`).textContent();
const ready = (page) => page.waitForFunction(() => !document.getElementById("start").disabled);
const bars = (page) => page.$$eval("#bars i", (all) => all.map((bar) => Number(bar.style.transform.slice(7, -1))));
const points = (page) => page.$eval("#smooth", (path) => (path.getAttribute("d") ?? "").split(/[ML]/).length - 1);

/** Draw lines through points, given in shares of the drawing area. */
async function draw(page, ...line) {
  await page.locator("#pad").scrollIntoViewIfNeeded();
  const { x, y, width, height } = await page.locator("#pad").boundingBox();
  const [first, ...others] = line.map(([right, down]) => [x + width * right, y + height * down]);
  await page.mouse.move(...first);
  await page.mouse.down();
  for (const point of others) await page.mouse.move(...point, { steps: 4 });
  await page.mouse.up();
}

async function train(page, steps) {
  await page.fill("#steps", String(steps));
  await page.click("#start");
}

const stopped = (page) => page.waitForFunction(() => document.getElementById("start").textContent === "Train");

async function download(page, id, name) {
  const [file] = await Promise.all([page.waitForEvent("download"), page.click(`#${id}`)]);
  await file.saveAs(join(folder, name));
  return file.suggestedFilename();
}

/** The sentence that a person reads. */
async function sentence(page) {
  await page.waitForFunction(() => !document.getElementById("error").hidden);
  return page.locator("#error p").textContent();
}

async function trainOnTheDigitsOfPython(page) {
  await ready(page);
  await train(page, 50);
  await stopped(page);
  report.files = [await download(page, "save-state", "state-50.safetensors")];
  report.points = await points(page);
}

async function teach(page) {
  await draw(page, [0.3, 0.25], [0.7, 0.25], [0.45, 0.8]);
  await page.click("#labels >> text=7");
  await draw(page, [0.28, 0.2], [0.66, 0.23], [0.5, 0.85]);
  await page.keyboard.press("7"); // as the button does
  report.first = await bars(page);
  await page.evaluate(() => {
    window.seen = { late: [], points: [], sevens: [] };
    let last = performance.now();
    setInterval(() => {
      const now = performance.now();
      window.seen.late.push(now - last - 20);
      last = now;
    }, 20);
    new MutationObserver(() => {
      window.seen.points.push(document.getElementById("smooth").getAttribute("d")?.split("L").length);
      window.seen.sevens.push(document.querySelectorAll("#bars i")[7].style.transform);
    }).observe(document.getElementById("smooth"), { attributes: true });
  });
  await train(page, 100);
  report.status = await text(page, "status");
  await stopped(page);
  report.seen = await page.evaluate(() => window.seen);
  report.taught = { points: await points(page), bars: await bars(page), verdict: await text(page, "verdict"),
    score: await text(page, "score"), step: await text(page, "step"),
    label: await page.getAttribute("#chart", "aria-label") };
  report.digits = await page.evaluate(async () =>
    (await (await import("./store.mjs")).get("digits")).map(({ pixels, label }) => ({ pixels: [...pixels], label })));
  await page.screenshot({ path: join(folder, "page.png"), fullPage: true });
}

async function keep(page) {
  report.files.push(await download(page, "save-model", "model.onnx"));
  report.files.push(await download(page, "save-state", "state.safetensors"));
  await page.click("#restart");
  await page.waitForFunction(() => document.getElementById("step").textContent === "0");
  report.restarted = await bars(page);
  await page.setInputFiles("#file", join(folder, "model.onnx"));
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Loaded model"));
  report.model = await bars(page);
  await page.setInputFiles("#file", join(folder, "state.safetensors"));
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Loaded state"));
  report.state = { step: await text(page, "step"), bars: await bars(page) };
  const damaged = { name: "state.safetensors", mimeType: "", buffer: Buffer.from("damaged") };
  await page.setInputFiles("#file", damaged);
  report.errors.file = await sentence(page);
}

async function drawWithTheKeyboard(page) {
  await page.focus("#pad");
  const keys = ["Escape", ...Array(6).fill("ArrowUp"), "Space", ...Array(12).fill("ArrowDown"), "Space", "1"];
  for (const key of keys) await page.keyboard.press(key);
  report.pressed = await page.locator("#labels [aria-pressed=true]").textContent();
}

/** The tab is killed in the middle of a training, and the page is opened again. */
async function kill(page) {
  await train(page, 100_000);
  await page.waitForFunction(() => Number(document.getElementById("step").textContent.replace(",", "")) > 180);
  await page.waitForTimeout(700); // the state is saved every half second
  const crash = page.waitForEvent("crash");
  const session = await browser.newCDPSession(page);
  session.send("Page.crash").catch(() => {}); // it has no answer
  await crash;
  const again = await open();
  await ready(again);
  report.again = { step: Number(await text(again, "step")), points: await points(again),
    digits: await again.locator("#digits li").count() };
  await again.waitForFunction((first) => Number(document.getElementById("step").textContent.replace(",", "")) > first,
    report.again.step);
  await again.click("#start");
  await stopped(again);
  await again.close();
}

/** The states of kits after 50 steps in the worker of the page. */
async function trainKits(page, kits) {
  report.states = await page.evaluate(async (names) => {
    const worker = new Worker("worker.mjs", { type: "module" });
    const call = (method, ...args) => new Promise((resolve, reject) => {
      worker.onmessage = ({ data: { id, value, error } }) => id && (error ? reject(new Error(error)) : resolve(value));
      worker.postMessage({ id: 1, method, args });
    });
    const states = {};
    for (const name of names) {
      const { batch } = await call("open", new URL(`${name}/`, location).href);
      await call("train", { steps: 50, batch });
      states[name] = [...(await call("state"))];
    }
    worker.terminate();
    return states;
  }, kits);
}

/** What a person reads who opens a kit that is damaged, or trains it on data that it cannot take. */
async function provoke(kit, batch) {
  const page = await open(`?kit=${kit}/`);
  if (batch) {
    await ready(page);
    await page.fill("#batch", String(batch));
    await page.click("#start");
  }
  report.errors[kit] = await sentence(page);
  await page.close();
}

try {
  const page = await open();
  await trainOnTheDigitsOfPython(page);
  await teach(page);
  await keep(page);
  await drawWithTheKeyboard(page);
  await trainKits(page, JSON.parse(kits));
  await kill(page);
  await Promise.all([provoke("newer"), provoke("damaged"), provoke("operator", 32), provoke("labels", 32),
    provoke("sizes", 20)]);
} finally {
  writeFileSync(join(folder, "report.json"), JSON.stringify(report));
  await browser.close();
}
