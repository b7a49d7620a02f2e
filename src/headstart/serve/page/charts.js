// Two small charts in SVG, drawn by hand, each with its content in words. Knows numbers and elements.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320;
const SHOWN = 100; // rounds that the depth chart has room for

/** Acceptance by position as bars; `shares` in 0…1. */
export function drawPositions(svg, words, shares) {
  const top = 18;
  const bottom = 92;
  const step = WIDTH / Math.max(shares.length, 4);
  const dense = shares.length > 10;
  const marks = [line(0, bottom, WIDTH, bottom)];
  shares.forEach((share, i) => {
    const height = (bottom - top) * share;
    const middle = (i + 0.5) * step;
    marks.push(rect(middle - step * 0.35, bottom - height, step * 0.7, height));
    if (!dense) marks.push(label(middle, bottom - height - 4, percent(share)));
    if (!dense || i % 4 === 0) marks.push(label(middle, bottom + 14, String(i + 1)));
  });
  if (!shares.length) marks.push(label(WIDTH / 2, 60, "nothing drafted yet"));
  svg.replaceChildren(...marks);
  words.textContent = shares.length
    ? shares.map((share, i) => `Position ${i + 1}: ${percent(share)}.`).join(" ")
    : "Nothing drafted yet.";
}

/** Depth allowed and tokens accepted, over the latest rounds. */
export function drawDepths(svg, words, rounds) {
  const top = 14;
  const bottom = 74;
  const shown = rounds.slice(-SHOWN);
  const most = Math.max(4, ...shown.map((round) => round.depth));
  const step = Math.min(8, (WIDTH - 22) / Math.max(shown.length, 1));
  const y = (depth) => bottom - ((bottom - top) * depth) / most;
  const marks = [line(22, bottom, WIDTH, bottom), label(18, top + 4, String(most), "end"), label(18, bottom, "0", "end")];
  let path = "";
  shown.forEach(({ depth, accepted }, i) => {
    const left = 22 + i * step;
    if (accepted) marks.push(rect(left, y(accepted), step * 0.8, bottom - y(accepted)));
    path += `${i ? "L" : "M"}${left} ${y(depth)}H${left + step}`;
  });
  if (path) marks.push(make("path", { d: path, class: "depth" }));
  svg.replaceChildren(...marks);
  const mean = shown.reduce((sum, round) => sum + round.depth, 0) / shown.length;
  words.textContent = shown.length
    ? `${rounds.length} rounds. Over the latest ${shown.length}, ${mean.toFixed(1)} draft tokens were allowed on average.`
    : "No round yet.";
}

export function percent(share) {
  return `${Math.round(100 * share)} %`;
}

function rect(x, y, width, height) {
  return make("rect", { x, y, width, height, class: "bar" });
}

function line(x1, y1, x2, y2) {
  return make("line", { x1, y1, x2, y2, class: "axis" });
}

function label(x, y, text, anchor = "middle") {
  const made = make("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

function make(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
