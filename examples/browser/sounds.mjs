// Sounds: recorded by the microphone or read from a file, named, and taught.

import { record } from "./digits/msedge-media.mjs";
import { answers, attempt, part } from "./answers.mjs";

const KINDS = ["hum", "rising", "falling", "knocks", "hiss"]; // of sounds.py
const LESSONS = 8; // steps for one sound that is taught
const SECONDS = 1, RATE = 16000;

let network, show, heard = null;

async function hear(sound) {
  heard = await network.input(sound);
  show(network.shares(heard));
}

async function listen() {
  part("record").disabled = true;
  part("microphone-said").textContent = "Listening…";
  try {
    const sound = await record({ seconds: SECONDS, onLevel: (level) => { part("level").value = level; } });
    await hear(sound);
    part("microphone-said").textContent = `${sound.samples.length} samples at ${sound.rate} a second`;
  } finally {
    part("level").value = 0;
    part("record").disabled = false;
  }
}

/** A sample as the browser decodes it. */
async function sample() {
  const name = part("sample").value;
  if (!name) return;
  const bytes = await (await fetch(`samples/${name}.wav`)).arrayBuffer();
  await hear(await new OfflineAudioContext(1, 1, RATE).decodeAudioData(bytes));
  part("microphone-said").textContent = `a sample: ${name}`;
}

async function teach(kind) {
  for (let i = 0; i < LESSONS; i += 1) network.learn([heard], [kind]);
  show(network.shares(heard));
  await network.keep();
}

async function forget() {
  await network.forget();
  show(heard && network.shares(heard));
}

/** Makes this part of the page ready. */
export function start(loaded) {
  const said = (action) => attempt("microphone-said", action);
  network = loaded;
  show = answers(part("sound-scores"), part("sound-teach"), KINDS, said(teach));
  show(null);
  part("sample").append(...KINDS.map((name) => new Option(name, name)));
  part("sample").addEventListener("change", said(sample));
  part("record").addEventListener("click", said(listen));
  part("forget-sounds").addEventListener("click", said(forget));
  for (const name of ["record", "forget-sounds"]) part(name).disabled = false;
}
