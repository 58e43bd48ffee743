// The verdict: is the SLO met, and if not, why; the state in the tab's icon; the key figures.

import { bestQuality, meanQuality, newest, quantile, recent, VERDICT_S, view } from "./samples.js";
import { $, CAUSES, color, duration, key, make, METRICS, ms, number, OUTCOMES, percent, REASONS, set, whole } from "./words.js";

const MUCH_DEGRADED = 0.5;
// as in the alert PolyrecLaneSlow
const MUCH_SLOWER = 2;
// of the time; beside an idle machine's other programs it is under 1%
const MUCH_WAITED = 0.1;
// a canary has enough comparisons within it, if there are as many as are meant to be
const SOON_S = 120;
const ICONS = {
  kept: ["#0b6e4f", "M8 17l6 6 11-13"],
  warn: ["#b25e02", "M16 7v11M16 23v2"],
  broken: ["#b3261e", "M9 9l14 14M23 9l-14 14"],
  unknown: ["#5b6877", "M9 16h1M16 16h1M23 16h1"],
};

/** Shows a state: as the color and the word of the verdict, in the title and in the tab's icon. */
export function show(state, mark, word, sentence, because) {
  $("verdict").className = `verdict ${state}`;
  set("mark", mark);
  set("word", word);
  set("sentence", sentence);
  set("because", because);
  document.title = `${mark} ${word} · Polyrec`;
  const [back, path] = ICONS[state];
  const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="${back}"/>`
    + `<path d="${path}" fill="none" stroke="#fff" stroke-width="4.5" stroke-linecap="round" stroke-linejoin="round"/></svg>`;
  const href = `data:image/svg+xml,${encodeURIComponent(icon)}`;
  if ($("icon").href !== href) $("icon").href = href;
}

export function verdict() {
  const { last } = view;
  const d = recent(VERDICT_S);
  const share = d.counted ? d.outcomes.ok / d.counted : null;
  const slo = last.promised_share;
  const span = newest().t < VERDICT_S - 3 ? `the ${duration(newest().t)} since it started` : "the last minute";
  const lanes = last.serving ? last.serving.routing.lanes : [];
  if (last.state === "loading") {
    show("unknown", "…", "Loading", "The server is opening its plan.", "");
  } else if (last.state !== "ready") {
    show("unknown", "…", "Draining", "The server finishes its requests and accepts no new ones; a load balancer should send elsewhere.", "");
  } else if (lanes.length && !lanes.some((lane) => lane.alive)) {
    show("broken", "✘", "No lane alive", "Every request gets 503 until a lane is back; they are being restarted.", "");
  } else if (share === null) {
    show("unknown", "○", "Ready, no requests", `No request in ${span}. SLO: ${percent(slo)} answered within their latency budget (${ms(last.default_budget_s)} unless a request says otherwise).`, warnings(d).join(" "));
  } else {
    const sentence = `${percent(share)} of ${whole(d.counted)} requests in ${span} were answered within their latency budget, usually ${ms(d.budget)}. SLO: ${percent(slo)}.`;
    const warned = warnings(d), burning = burns();
    const worst = last.broken.filter((o) => d.outcomes[o] > 0).sort((a, b) => d.outcomes[b] - d.outcomes[a])[0];
    if (share < slo) show("broken", "✘", "SLO missed", sentence, [`Most of the others, ${whole(d.outcomes[worst])}, ${CAUSES[worst]}.`, ...starved(d), ...slowLanes(lanes), ...warned].join(" "));
    else if (warned.length || burning) show("warn", "!", "SLO met", sentence, [...warned, burning].join(" "));
    else show("kept", "✔", "SLO met", sentence, degradedShare(d) > 0.01 ? `To meet it, ${percent(degradedShare(d))} of the answers came from a path of lower quality.` : "");
  }
  outcomeBar(d);
}

/** Returns what an operator should look at although the SLO may be met. */
function warnings(d) {
  const { last } = view;
  const found = [];
  const lanes = last.serving ? last.serving.routing.lanes : [];
  const out = lanes.filter((lane) => !lane.alive || lane.breaker === "open");
  if (out.length === 1) found.push(`Lane ${out[0].name} is out of service.`);
  else if (out.length) found.push(`${out.length} of ${lanes.length} lanes are out of service.`);
  const moved = Object.values((last.live_quality || { value_changes: {} }).value_changes).filter((by) => by);
  const error = last.live_quality && last.live_quality.error;
  if (error) found.push(`Live quality is not measured: ${error}.`);
  if (moved.length) found.push(`Live quality moved the value of ${moved.length === 1 ? "a path" : `${moved.length} paths`} from what test rows gave.`);
  const { rollout } = last;
  if (rollout && rollout.is_short && rollout.age_s > SOON_S) found.push(`Canary ${rollout.canary_version} has not enough comparisons and is not promoted.`);
  if (degradedShare(d) > MUCH_DEGRADED) found.push(`${percent(degradedShare(d))} of the answers came from a path of lower quality.`);
  return found;
}

/** Returns what slows lanes down so much that the load alone does not explain a missed SLO. */
function slowLanes(lanes) {
  return lanes.filter((lane) => lane.alive && lane.factor > MUCH_SLOWER)
    .map((lane) => `Lane ${lane.name} is ${lane.factor.toFixed(1)}× slower than profiled: is its device busy with other work?`);
}

/** Returns whether other programs kept the event loop, which reads all requests, from running. */
function starved(d) {
  return d.waited > MUCH_WAITED ? [`The server waited ${percent(d.waited)} of the time for a processor that other work used.`] : [];
}

/** Returns a warning if the SLO, met now, was missed over the last hour. */
function burns() {
  const burn = view.last.error_budget.burn_rates["1h"];
  return burn > 1 ? `Over the last ${newest().t < 3600 ? duration(newest().t) : "hour"} the error budget burned at ${number(burn)} times what the SLO allows.` : "";
}

function degradedShare(d) {
  const degraded = Object.values(d.degraded).reduce((x, y) => x + y, 0);
  return Math.min(1, degraded / Math.max(1, d.outcomes.ok + d.outcomes.late));
}

function outcomeBar(d) {
  const names = ["ok", ...view.last.broken];
  const seen = names.filter((o) => d.outcomes[o] > 0);
  $("outcome-bar").replaceChildren(...seen.map((o) => {
    const part = make("i");
    part.style.width = `${100 * d.outcomes[o] / d.counted}%`;
    part.style.background = color(o);
    return part;
  }));
  $("outcome-bar").setAttribute("aria-label", names.map((o) => `${OUTCOMES[o]} ${whole(d.outcomes[o])}`).join(", "));
  $("outcome-bar").hidden = !d.counted;
  $("outcome-legend").replaceChildren(...seen.map((o) => make("li", {}, key(o), `${OUTCOMES[o]} `, make("strong", {}, whole(d.outcomes[o])))));
}

export function tiles() {
  const { last } = view;
  const d = recent(10);
  const total = Object.values(d.outcomes).reduce((x, y) => x + y, 0);
  set("requests", `${number(total / d.seconds)}/s`);
  const rejected = d.outcomes.overloaded + d.outcomes.expired;
  const theirs = d.outcomes.invalid + d.outcomes.cancelled;
  set("requests-note", `${number(rejected / d.seconds)}/s rejected or expired` + (theirs ? `, ${number(theirs / d.seconds)}/s invalid or canceled` : ""));
  const p99 = quantile(d.latency, 0.99);
  set("p99", ms(p99));
  $("p99").className = p99 !== null && p99 > d.budget ? "big bad" : "big";
  set("p99-note", p99 === null ? `budget ${ms(last.default_budget_s)}` : `budget ${ms(d.budget)} · half within ${ms(quantile(d.latency, 0.5))}`);
  set("goodput", `${number(d.inTime / d.seconds)}/s`);
  const routing = last.serving && last.serving.routing;
  set("goodput-note", routing ? `the lanes can do about ${whole(routing.total_rate)}/s on their fastest paths, at present request sizes` : "");
  qualityTile(d);
  budgetTile();
}

function qualityTile(d) {
  const mean = meanQuality(d), best = bestQuality();
  set("quality", mean === null ? "–" : mean.toFixed(4));
  const notes = [`${METRICS[view.last.metric] ?? "quality"} of a row`];
  if (best !== null && mean !== null && best > mean + 5e-5) notes.push(`the best path would give ${best.toFixed(4)}, ${percent(best / mean - 1)} more`);
  else if (best !== null) notes.push(`best path ${best.toFixed(4)}`);
  const why = Object.entries(d.degraded).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1])[0];
  if (why) notes.push(`${percent(degradedShare(d))} of answers degraded by ${REASONS[why[0]]}`);
  else if (d.all) notes.push("no answer degraded");
  set("quality-note", notes.join("; "));
}

function budgetTile() {
  const { used, burn_rates } = view.last.error_budget;
  set("budget", used === null ? "–" : used <= 1 ? percent(used) : `${number(used)}×`);
  $("budget").className = used > 1 ? "big bad" : "big";
  const windows = { "5m": [300, "5 min"], "1h": [3600, "1 h"], "6h": [21600, "6 h"] };
  const rates = Object.entries(windows).filter(([name, [seconds]]) => newest().t > seconds && burn_rates[name] !== null)
    .map(([name, [, word]]) => `${number(burn_rates[name])}× over ${word}`);
  set("budget-note", `${used === null ? `known after ${whole(1 / (1 - view.last.promised_share))} requests; ` : "used; "}${percent(1 - view.last.promised_share)} of the requests since the start may miss the SLO`
    + (rates.length ? `; burn rate ${rates.join(", ")}` : ""));
}
