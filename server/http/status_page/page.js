// Polls /v1/status every second and draws it: verdict.js, charts.js, tables.js.

import { charts, listen, recolor, showLast } from "./charts.js";
import { knownUntil, newest, take, view } from "./samples.js";
import { tables } from "./tables.js";
import { show, tiles, verdict } from "./verdict.js";
import { $, duration, set } from "./words.js";

const POLL_MS = 1000;
let lastHeard = null;
let paused = false;

export function draw() {
  verdict();
  tiles();
  charts();
  tables();
  const { last } = view;
  set("model", last.model ? `· ${last.model}` : "");
  set("about", `up ${duration(newest().t)} · version ${last.version}${paused ? " · paused" : ""}`);
}

function silent() {
  show("broken", "✘", "No answer", lastHeard === null ? "The server does not answer."
    : `The server has not answered since ${new Date(lastHeard).toLocaleTimeString()}. What is below is from then.`, "Asking again every second.");
}

async function poll() {
  if (!paused && !document.hidden) {
    try {
      const answer = await fetch(`/v1/status?since=${knownUntil()}`, { signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(answer.status);
      take(await answer.json());
      lastHeard = Date.now();
      draw();
    } catch (error) {
      if (lastHeard === null || Date.now() - lastHeard > 3 * POLL_MS) silent();
      // what a server that ends or restarts causes; anything else is a defect and is thrown
      if (!(error instanceof DOMException || error.name === "Error" || /fetch|network|JSON/i.test(error.message))) throw error;
    } finally {
      setTimeout(poll, POLL_MS);
    }
  } else setTimeout(poll, POLL_MS);
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  set("theme", dark ? "Light" : "Dark");
  recolor(document.documentElement.dataset.theme);
}

/** Stops asking the server until it is called again. */
export function pause() {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  set("pause", paused ? "Resume" : "Pause");
  if (view.last) draw();
}

$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme !== "dark"));
const preference = matchMedia("(prefers-color-scheme: dark)");
preference.addEventListener("change", (e) => theme(e.matches));
theme(preference.matches);
$("pause").addEventListener("click", pause);
$("window").addEventListener("change", (e) => {
  showLast(Number(e.target.value));
  if (view.last) draw();
});
listen();
poll();
