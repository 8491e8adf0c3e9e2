// The page's behaviour: reading what is written, learning from it, and from a writer's digits.

import { load } from "./model/msedge.mjs";

const SIDE = 8, CELL = 4, INK = 16; // digits are 8 x 8; each cell counts the ink of 4 x 4 points: 0 to 16
const BATCH = 16, EPOCHS = 12, LESSONS = 8; // of a step; of the writer's digits; steps for one digit that is taught
const SHOWN = 48;
const NONE = -1n; // a label that does not count

const part = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(0)} %`;
const toInput = (ink) => Float32Array.from(ink, (value) => value / 8 - 1);

let model, writer, steps = 0;

// -- the network ------------------------------------------------------------------------------------------------------

function scoresOf(ink) {
  const { logits } = model.run({ x: toInput(ink) });
  const most = Math.max(...logits), powers = Array.from(logits, (value) => Math.exp(value - most));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

const answerOf = (ink) => scoresOf(ink).reduce((best, score, digit, all) => (score > all[best] ? digit : best), 0);

/** One step on up to BATCH digits; the rest of the batch does not count. */
function learn(digits, labels) {
  const x = new Float32Array(BATCH * SIDE * SIDE), wanted = new BigInt64Array(BATCH).fill(NONE);
  for (const [i, ink] of digits.entries()) {
    x.set(toInput(ink), i * SIDE * SIDE);
    wanted[i] = BigInt(labels[i]);
  }
  steps += 1;
  return model.run({ x, labels: wanted }, "train_step").loss[0];
}

// -- the field to write in --------------------------------------------------------------------------------------------

const pad = part("pad"), pen = pad.getContext("2d");
let last = null;

function clear() {
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, pad.width, pad.height);
  showScores(new Array(10).fill(0));
}

function stroke(event) {
  const scale = pad.width / pad.clientWidth, at = [event.offsetX * scale, event.offsetY * scale];
  pen.lineWidth = 30;
  pen.lineCap = "round";
  pen.strokeStyle = "#111";
  pen.beginPath();
  pen.moveTo(...(last ?? at));
  pen.lineTo(...at);
  pen.stroke();
  last = at;
}

/** What is written as ink in 8 x 8 cells: 32 x 32 points are black or white, as in the data the network learned from. */
function written() {
  const points = SIDE * CELL, small = new OffscreenCanvas(points, points).getContext("2d");
  small.drawImage(pad, 0, 0, points, points);
  const { data } = small.getImageData(0, 0, points, points), ink = new Array(SIDE * SIDE).fill(0);
  for (let y = 0; y < points; y += 1) {
    for (let x = 0; x < points; x += 1) {
      if (data[4 * (y * points + x)] < 128) ink[SIDE * Math.floor(y / CELL) + Math.floor(x / CELL)] += INK / CELL ** 2;
    }
  }
  return ink;
}

function read() {
  const ink = written(), begin = performance.now(), scores = scoresOf(ink);
  part("timing").textContent = `read in ${(1000 * (performance.now() - begin)).toFixed(0)} µs`;
  showScores(scores);
}

function showScores(scores) {
  const most = Math.max(...scores);
  for (const [digit, row] of [...part("scores").children].entries()) {
    row.classList.toggle("most", most > 0 && scores[digit] === most);
    row.querySelector("meter").value = scores[digit];
    row.lastElementChild.textContent = most > 0 ? percent(scores[digit]) : "";
  }
}

function prepareField() {
  for (let digit = 0; digit < 10; digit += 1) {
    const row = document.createElement("li"), name = document.createElement("span"), share = document.createElement("span");
    name.textContent = digit;
    row.append(name, document.createElement("meter"), share);
    part("scores").append(row);
    const button = document.createElement("button");
    button.textContent = digit;
    button.addEventListener("click", async () => {
      const ink = written();
      for (let i = 0; i < LESSONS; i += 1) learn([ink], [digit]);
      read();
      await changed();
    });
    part("teach").append(button);
  }
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    last = null;
    stroke(event);
  });
  pad.addEventListener("pointermove", (event) => event.buttons && stroke(event));
  pad.addEventListener("pointerup", () => read());
  part("clear").addEventListener("click", clear);
  clear();
}

// -- the writer's digits ----------------------------------------------------------------------------------------------

const half = () => writer.labels.length / 2;

/** The share of right answers on the half that is not learned from. */
function accuracy() {
  let right = 0;
  for (let i = half(); i < writer.labels.length; i += 1) right += answerOf(writer.ink[i]) === writer.labels[i];
  return right / half();
}

function picture(ink) {
  const canvas = document.createElement("canvas"), image = new ImageData(SIDE, SIDE);
  [canvas.width, canvas.height] = [SIDE, SIDE];
  for (const [i, value] of ink.entries()) {
    image.data.fill(255 - Math.round((value * 255) / INK), 4 * i, 4 * i + 3);
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function showDigits() {
  part("digits").replaceChildren(...writer.ink.slice(half(), half() + SHOWN).map((ink, i) => {
    const figure = document.createElement("figure"), answer = answerOf(ink), right = writer.labels[half() + i];
    figure.className = answer === right ? "" : "wrong";
    figure.append(picture(ink), `${answer}`);
    figure.title = `read as ${answer}, is ${right}`;
    return figure;
  }));
  part("now").textContent = percent(accuracy());
  part("steps").textContent = steps;
}

async function learnWriter() {
  for (const name of ["learn", "forget"]) part(name).disabled = true;
  const order = Array.from({ length: half() }, (_, i) => i);
  for (let epoch = 0; epoch < EPOCHS; epoch += 1) {
    for (let at = 0; at < order.length; at += BATCH) {
      const rows = order.slice(at, at + BATCH).map((i) => (i * 7 + epoch) % half());
      learn(rows.map((i) => writer.ink[i]), rows.map((i) => writer.labels[i]));
    }
    showDigits();
    await new Promise(requestAnimationFrame);
  }
  await changed();
  for (const name of ["learn", "forget"]) part(name).disabled = false;
}

/** Shows what the network knows now, and keeps it in this browser. */
async function changed() {
  showDigits();
  await model.saveState();
  part("kept").textContent = "kept in this browser";
}

async function forget() {
  model.resetState();
  steps = 0;
  part("kept").textContent = "";
  showDigits();
  await model.saveState();
}

// -- the start --------------------------------------------------------------------------------------------------------

async function start() {
  const begin = performance.now(), come = {};
  model = await load({
    onProgress: ({ file, loaded, total }) => {
      come[file] = loaded / (total ?? loaded);
      part("loading").value = Object.values(come).reduce((a, b) => a + b) / 2;
    },
  });
  model.selfTest();
  writer = await (await fetch("writer.json")).json();
  part("before").textContent = percent(accuracy());
  const kept = await model.loadState();
  part("kept").textContent = kept ? "continued from what was kept in this browser" : "";
  part("loading").hidden = true;
  const memory = `${(model.memoryBytes / 2 ** 20).toFixed(1)} MiB of memory`, took = (performance.now() - begin).toFixed(0);
  part("status").textContent = `Ready after ${took} ms; ${model.kernels}, threads: ${model.threads}, ${memory}.`;
  prepareField();
  showDigits();
  part("learn").addEventListener("click", learnWriter);
  part("forget").addEventListener("click", forget);
  for (const name of ["learn", "forget"]) part(name).disabled = false;
}

start().catch((error) => {
  part("loading").hidden = true;
  part("status").textContent = `This page cannot start: ${error.message}`;
});
