// The loss curve: the loss of each step, thin, and its moving average, thick.

const COLUMNS = 400;
const $ = (id) => document.getElementById(id);

/** Moving averages that start without a bias towards 0. */
function smoothen(losses) {
  let [sum, weight] = [0, 0];
  return losses.map((loss) => {
    [sum, weight] = [0.85 * sum + 0.15 * loss, 0.85 * weight + 0.15];
    return sum / weight;
  });
}

function roundUp(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((digit) => digit * power >= x) * power;
}

/** Draw the losses of the latest steps, of which the last is number `steps`, and return their moving average. */
export function drawLosses(losses, steps) {
  $("chart-hint").hidden = losses.length > 0;
  if (!losses.length) {
    for (const id of ["raw", "smooth"]) $(id).removeAttribute("d");
    for (const id of ["top", "first", "last"]) $(id).textContent = "";
    return;
  }
  const smooth = smoothen(losses);
  const every = Math.ceil(losses.length / COLUMNS);
  const columns = [...losses.keys()].filter((i) => i % every === 0 || i === losses.length - 1);
  const top = roundUp(Math.max(1e-3, ...columns.map((i) => Math.max(losses[i], smooth[i]))));
  const path = (values) => "M" + columns.map((i) =>
    `${(100 * i) / Math.max(1, losses.length - 1)} ${100 - (100 * values[i]) / top}`).join("L");
  $("raw").setAttribute("d", path(losses));
  $("smooth").setAttribute("d", path(smooth));
  const first = steps - losses.length + 1;
  $("top").textContent = String(Number(top.toPrecision(2)));
  [$("first").textContent, $("last").textContent] = [`step ${first}`, `step ${steps}`];
  const last = smooth.at(-1);
  $("chart").setAttribute("aria-label",
    `Loss from ${smooth[0].toFixed(3)} at step ${first} to ${last.toFixed(3)} at step ${steps}`);
  return last;
}
