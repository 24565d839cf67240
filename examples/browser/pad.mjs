// The area in which a digit is drawn, and the 8 by 8 image that the model gets of it.

const WIDTH = 0.075; // of a line, as a share of the area
const STEP = 0.04; // of the pen, when an arrow key moves it
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function trace(context, strokes, width, place) {
  context.lineWidth = width;
  context.lineCap = context.lineJoin = "round";
  for (const stroke of strokes) {
    context.beginPath();
    // A line from a point to itself is a dot.
    for (const point of [stroke[0], ...stroke]) context.lineTo(...place(point));
    context.stroke();
  }
}

export class Pad {
  /** Strokes are lists of points [x, y], in shares of the area. */
  strokes = [];
  /** Whether the next stroke starts a new drawing. */
  complete = false;
  #pen = [0.5, 0.5];
  #down = false;

  constructor(canvas, onChange) {
    this.canvas = canvas;
    this.onChange = onChange;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      this.#begin(this.#locate(event));
      this.#down = true;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.#down || !canvas.hasPointerCapture(event.pointerId)) return;
      const events = event.getCoalescedEvents?.() ?? [];
      this.#extend(...(events.length ? events : [event]).map((each) => this.#locate(each)));
    });
    canvas.addEventListener("lostpointercapture", () => (this.#down = false));
    canvas.addEventListener("keydown", (event) => this.#press(event));
    canvas.addEventListener("focus", () => this.draw());
    canvas.addEventListener("blur", () => this.draw());
    this.draw();
  }

  clear() {
    this.strokes = [];
    this.complete = this.#down = false;
    this.#changed();
  }

  draw() {
    const { canvas, strokes } = this;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.strokeStyle = style.getPropertyValue("--ink");
    trace(context, strokes, WIDTH * canvas.width, ([x, y]) => [x * canvas.width, y * canvas.height]);
    if (!canvas.matches(":focus-visible")) return;
    context.beginPath();
    context.arc(this.#pen[0] * canvas.width, this.#pen[1] * canvas.height, 14, 0, 2 * Math.PI);
    context.lineWidth = 4;
    context.strokeStyle = context.fillStyle = style.getPropertyValue("--accent");
    this.#down ? context.fill() : context.stroke();
  }

  #locate(event) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    return [(event.clientX - left) / width, (event.clientY - top) / height];
  }

  #begin(point) {
    if (this.complete) this.strokes = [];
    this.complete = false;
    this.strokes.push([point]);
    this.#changed();
  }

  #extend(...points) {
    this.strokes.at(-1).push(...points);
    this.#changed();
  }

  #press(event) {
    if (event.key === " ") {
      this.#down = !this.#down;
      if (this.#down) this.#begin(this.#pen);
    } else if (event.key === "Escape") {
      this.clear();
    } else if (event.key in ARROWS) {
      this.#pen = this.#pen.map((x, axis) => Math.min(0.96, Math.max(0.04, x + STEP * ARROWS[event.key][axis])));
      if (this.#down) this.#extend(this.#pen);
    } else return;
    event.preventDefault();
    this.draw();
  }

  #changed() {
    this.draw();
    this.onChange();
  }
}

/**
 * The drawing as scikit-learn's digits were made: of the size of a bitmap of 32 by 32, the dots in each block of
 * 4 by 4 counted. The numbers 0 to 16 of 64 pixels, row by row.
 */
export function toPixels(strokes) {
  const context = new OffscreenCanvas(32, 32).getContext("2d", { willReadFrequently: true });
  const [xs, ys] = [0, 1].map((axis) => strokes.flat().map((point) => point[axis]));
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = Math.min(22 / (right - left), 28 / (bottom - top), 100); // lines are 4 wide; 100 for a dot
  const place = ([x, y]) => [16 + scale * (x - (left + right) / 2), 16 + scale * (y - (top + bottom) / 2)];
  trace(context, strokes, 4, place);
  const { data } = context.getImageData(0, 0, 32, 32);
  const pixels = new Uint8Array(64);
  for (let i = 0; i < 1024; i++) pixels[8 * (i >> 7) + ((i & 31) >> 2)] += data[4 * i + 3] > 127;
  return pixels;
}

/** Show an image of 8 by 8 in a canvas of that size. */
export function show(canvas, pixels) {
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, 8, 8);
  context.fillStyle = getComputedStyle(canvas).getPropertyValue("--ink");
  pixels.forEach((value, i) => {
    context.globalAlpha = value / 16;
    context.fillRect(i & 7, i >> 3, 1, 1);
  });
}
