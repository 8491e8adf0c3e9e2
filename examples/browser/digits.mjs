// Digits: written or held before the camera, read, and taught; and the digits of a writer, learned.

import { camera } from "./digits/msedge-media.mjs";
import { answers, part, percent } from "./answers.mjs";

const SIDE = 8, CELL = 4, INK = 16; // a writer's digits are 8 x 8 cells with ink of 0 to 16, shown as 4 x 4 points
const EPOCHS = 12, LESSONS = 8; // of the writer's digits; steps for one digit that is taught
const SHOWN = 48;
const DIGITS = Array.from({ length: 10 }, (_, digit) => `${digit}`);

const pad = part("pad"), pen = pad.getContext("2d", { willReadFrequently: true });
let network, show, writer, last = null;

/** Examples of this page with their labels: the half of the writer's digits that is learned from, and what was taught. */
export const examples = { inputs: [], labels: [] };

// -- the field --------------------------------------------------------------------------------------------------------

function clear() {
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, pad.width, pad.height);
  show(null);
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

async function read() {
  const begin = performance.now();
  show(network.shares(await network.input(pad)));
  part("timing").textContent = `read in ${(performance.now() - begin).toFixed(1)} ms`;
}

async function teach(digit) {
  const x = await network.input(pad);
  for (let i = 0; i < LESSONS; i += 1) network.learn([x], [digit]);
  examples.inputs.push(x);
  examples.labels.push(digit);
  await read();
  await changed();
}

function prepareField() {
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    last = null;
    stroke(event);
  });
  pad.addEventListener("pointermove", (event) => event.buttons && stroke(event));
  pad.addEventListener("pointerup", read);
  part("clear").addEventListener("click", clear);
  clear();
}

// -- the camera -------------------------------------------------------------------------------------------------------

const video = part("video");
let stop = null;

async function switchCamera() {
  part("camera-said").textContent = "";
  try {
    if (stop) stop();
    stop = stop ? null : await camera(video);
  } catch (error) {
    part("camera-said").textContent = error.message;
  }
  video.hidden = part("take").disabled = !stop;
  part("switch").textContent = stop ? "Stop the camera" : "Use the camera";
}

/** The middle of the camera's picture in the field, as black ink on white paper, and read. */
async function take() {
  const size = Math.min(video.videoWidth, video.videoHeight);
  const corner = [(video.videoWidth - size) / 2, (video.videoHeight - size) / 2];
  pen.drawImage(video, ...corner, size, size, 0, 0, pad.width, pad.height);
  const picture = pen.getImageData(0, 0, pad.width, pad.height), { data } = picture, grey = new Uint8Array(data.length / 4);
  for (let i = 0; i < grey.length; i += 1) grey[i] = 0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2];
  const between = threshold(grey);
  for (const [i, value] of grey.entries()) data.fill(value > between ? 255 : 0, 4 * i, 4 * i + 3);
  pen.putImageData(picture, 0, 0);
  await read();
}

/** The grey that divides ink from paper with the largest variance between them (Otsu, 1979). */
function threshold(grey) {
  const counts = new Float64Array(256);
  for (const value of grey) counts[value] += 1;
  const whole = counts.reduce((sum, count, value) => sum + count * value, 0);
  let [best, at, below, sum] = [-1, 0, 0, 0];
  for (let value = 0; value < 255; value += 1) {
    below += counts[value];
    sum += counts[value] * value;
    const above = grey.length - below;
    if (!below || !above) continue;
    const variance = below * above * (sum / below - (whole - sum) / above) ** 2;
    if (variance > best) [best, at] = [variance, value];
  }
  return at;
}

// -- the writer's digits ----------------------------------------------------------------------------------------------

const half = () => writer.labels.length / 2;

function picture(ink) {
  const side = SIDE * CELL, made = new ImageData(side, side);
  made.data.fill(255);
  for (let i = 0; i < side * side; i += 1) {
    const cell = SIDE * Math.floor(i / side / CELL) + Math.floor((i % side) / CELL);
    made.data.fill(255 - Math.round((ink[cell] * 255) / INK), 4 * i, 4 * i + 3);
  }
  return made;
}

/** The share of right answers on the half that is not learned from. */
function accuracy() {
  const right = writer.inputs.slice(half()).filter((x, i) => network.answer(x) === writer.labels[half() + i]);
  return right.length / half();
}

function showWriter() {
  part("digits").replaceChildren(...writer.pictures.slice(half(), half() + SHOWN).map((each, i) => {
    const figure = document.createElement("figure"), canvas = document.createElement("canvas");
    const answer = network.answer(writer.inputs[half() + i]), right = writer.labels[half() + i];
    [canvas.width, canvas.height] = [each.width, each.height];
    canvas.getContext("2d").putImageData(each, 0, 0);
    figure.className = answer === right ? "" : "wrong";
    figure.append(canvas, `${answer}`);
    figure.title = `read as ${answer}, is ${right}`;
    return figure;
  }));
  part("now").textContent = percent(accuracy());
  part("steps").textContent = network.steps;
}

function able(enabled) {
  for (const name of ["learn", "forget"]) part(name).disabled = !enabled;
}

async function learnWriter() {
  able(false);
  for (let epoch = 0; epoch < EPOCHS; epoch += 1) {
    for (let at = 0; at < half(); at += network.batch) {
      const rows = Array.from({ length: Math.min(network.batch, half() - at) }, (_, i) => ((at + i) * 7 + epoch) % half());
      network.learn(rows.map((row) => writer.inputs[row]), rows.map((row) => writer.labels[row]));
    }
    showWriter();
    await new Promise(requestAnimationFrame);
  }
  await changed();
  able(true);
}

/** Shows what the network knows now, and keeps it in this browser. */
async function changed() {
  showWriter();
  await network.keep();
  part("kept").textContent = "kept in this browser";
}

async function forget() {
  const kept = network.forget();
  part("kept").textContent = "";
  showWriter();
  await kept;
}

/** Makes this part of the page ready. */
export async function start(loaded) {
  network = loaded;
  show = answers(part("scores"), part("teach"), DIGITS, teach);
  writer = await (await fetch("writer.json")).json();
  writer.pictures = writer.ink.map(picture);
  writer.inputs = [];
  for (const each of writer.pictures) writer.inputs.push(await network.input(each));
  examples.inputs.push(...writer.inputs.slice(0, half()));
  examples.labels.push(...writer.labels.slice(0, half()));
  const learned = network.model.state();
  network.model.setState(network.fresh);
  part("before").textContent = percent(accuracy());
  network.model.setState(learned);
  part("kept").textContent = network.kept ? "continued from what was kept in this browser" : "";
  prepareField();
  showWriter();
  const clicks = { learn: learnWriter, forget, switch: switchCamera, take };
  for (const [name, action] of Object.entries(clicks)) part(name).addEventListener("click", action);
  able(true);
}
