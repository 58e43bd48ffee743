// Polls /v1/status every second and draws it. Counts are cumulative: everything shown is a difference between
// two samples. All text is set as text; nothing from the server ever becomes markup.
"use strict";

const POLL_MS = 1000;
const VERDICT_S = 60;
const KEPT_S = 300;
const SMOOTH_S = 6;
const SPACING_S = 2;
const SVG = "http://www.w3.org/2000/svg";
const WORDS = {
  ok: "in time", late: "late", overloaded: "rejected (429)", expired: "expired (504)",
  unavailable: "unavailable (503)", error: "error (500)",
};
const CAUSES = {
  late: "were answered after their budget: execution takes longer than routing predicted",
  overloaded: "were rejected on arrival: more arrives than can be answered in time",
  expired: "expired in the queue",
  unavailable: "found no lane alive, or the server was still loading",
  error: "failed inside the server; its log says why",
};
const REASONS = { load: "high load", deadline: "short latency budgets", failure: "failed lanes",
  probe: "probes of lanes that were slow or had failed" };

const $ = (id) => document.getElementById(id);
let samples = [];
let last = null;
let lastHeard = null;
let paused = false;
let windowS = 60;

// ---------------------------------------------------------------- differences

/** Returns the last sample at or before `t`, else the first. */
function sampleAt(t) {
  let found = samples[0];
  for (const s of samples) {
    if (s.t <= t) found = s;
    else break;
  }
  return found;
}

/** Returns the differences between two samples. */
function between(a, b) {
  const seconds = Math.max(b.t - a.t, 1e-9);
  const outcomes = {};
  let counted = 0;
  for (const name of last.outcomes) {
    outcomes[name] = b.outcomes[name] - a.outcomes[name];
    if (name === "ok" || last.broken.includes(name)) counted += outcomes[name];
  }
  const rows = {};
  let all = 0, inTime = 0;
  for (const [path, [late, ok]] of Object.entries(b.rows)) {
    const before = a.rows[path] || [0, 0];
    rows[path] = late - before[0] + ok - before[1];
    all += rows[path];
    inTime += ok - before[1];
  }
  const latency = b.latency.map((n, i) => n - a.latency[i]);
  const degraded = {};
  for (const [reason, n] of Object.entries(b.degraded)) degraded[reason] = n - a.degraded[reason];
  const tiers = {};
  for (const [tier, [looked, found]] of Object.entries(b.tiers)) {
    const before = a.tiers[tier] || [0, 0];
    tiers[tier] = [looked - before[0], found - before[1]];
  }
  return { t: b.t, seconds, outcomes, counted, rows, all, inTime, latency, degraded, tiers, budget: b.budget_s };
}

/** Interpolated as Prometheus does; null if there was no answer. */
function quantile(counts, q) {
  const all = counts.reduce((x, y) => x + y, 0);
  if (all <= 0) return null;
  let below = 0;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] > 0 && below + counts[i] >= q * all) {
      if (i === last.edges_s.length) return last.edges_s[i - 1];
      const low = i ? last.edges_s[i - 1] : 0;
      return low + (last.edges_s[i] - low) * (q * all - below) / counts[i];
    }
    below += counts[i];
  }
  return null;
}

// ---------------------------------------------------------------- words

const number = (x) => x == null ? "–" : Math.abs(x) < 0.005 ? "0" : Math.abs(x) >= 100 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(3)));
const whole = (x) => Math.round(x).toLocaleString("en");
const ms = (s) => s == null ? "–" : `${number(1000 * s)} ms`;
// Cut, not rounded: 98.97% is no 99%.
const percent = (share) => share > 0 && share < 0.001 ? "under 0.1%" : `${Math.floor(share * 1000 + 1e-9) / 10}%`;

function duration(s) {
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.round(s / 86400)} days`;
}

// ---------------------------------------------------------------- elements

function make(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

function svg(tag, attributes, text) {
  const e = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    // a style set by script is allowed by the policy, an attribute `style` is not
    if (name === "fill" || name === "stroke") e.style[name] = value;
    else e.setAttribute(name, value);
  }
  if (text !== undefined) e.textContent = text;
  return e;
}

const color = (name) => `var(--${name})`;

function key(name, dashed = false) {
  const e = make("span", { class: dashed ? "key dashed" : "key", "aria-hidden": "true" });
  if (!dashed) e.style.background = color(name);
  return e;
}

function meter(share, text) {
  const fill = make("i");
  fill.style.width = `${Math.min(100, Math.max(0, 100 * share))}%`;
  return [make("span", { class: "meter", "aria-hidden": "true" }, fill), text];
}

/** Returns path names, best first, as colors and stacks are ordered. */
function pathOrder() {
  const paths = last.serving ? [...last.serving.paths] : [];
  return paths.sort((a, b) => (b.quality ?? 0) - (a.quality ?? 0)).map((p) => p.name);
}

// ---------------------------------------------------------------- the verdict

function verdict() {
  const now = samples[samples.length - 1];
  const d = between(sampleAt(now.t - VERDICT_S), now);
  const share = d.counted ? d.outcomes.ok / d.counted : null;
  const slo = last.promised_share;
  const span = d.seconds < VERDICT_S - 3 ? `the ${duration(d.seconds)} since it started` : "the last minute";
  let state = "unknown", mark = "…", word, sentence, because = "";
  if (last.state !== "ready") {
    word = last.state === "loading" ? "Loading" : "Draining";
    sentence = last.state === "loading" ? "The server is opening its plan."
      : "The server finishes its requests and accepts no new ones; a load balancer should send elsewhere.";
  } else if (share === null) {
    mark = "○";
    word = "Ready, no requests";
    sentence = `No request in ${span}. SLO: ${percent(slo)} answered within their latency budget (${ms(last.default_budget_s)} unless a request says otherwise).`;
  } else {
    const kept = share >= slo;
    state = kept ? "kept" : "broken";
    mark = kept ? "✔" : "✘";
    word = kept ? "SLO met" : "SLO missed";
    sentence = `${percent(share)} of ${whole(d.counted)} requests in ${span} were answered within their latency budget, usually ${ms(d.budget)}. SLO: ${percent(slo)}.`;
    const worst = last.broken.filter((o) => d.outcomes[o] > 0).sort((a, b) => d.outcomes[b] - d.outcomes[a])[0];
    if (!kept) because = `Most of the others, ${whole(d.outcomes[worst])}, ${CAUSES[worst]}.`;
    else {
      const degraded = Object.values(d.degraded).reduce((x, y) => x + y, 0);
      const answers = d.outcomes.ok + d.outcomes.late;
      if (degraded / Math.max(1, answers) > 0.01) because = `To meet it, ${percent(Math.min(1, degraded / answers))} of the answers came from a less accurate path.`;
    }
  }
  const box = $("verdict");
  box.className = `verdict ${state}`;
  set("mark", mark);
  set("word", word);
  set("sentence", sentence);
  set("because", because);
  document.title = `${mark} ${word} · Polyrec`;
  const names = ["ok", ...last.broken];
  $("outcome-bar").replaceChildren(...names.filter((o) => d.outcomes[o] > 0).map((o) => {
    const part = make("i");
    part.style.width = `${100 * d.outcomes[o] / d.counted}%`;
    part.style.background = color(o);
    return part;
  }));
  $("outcome-bar").setAttribute("aria-label", names.map((o) => `${WORDS[o]} ${whole(d.outcomes[o])}`).join(", "));
  $("outcome-bar").hidden = !d.counted;
  $("outcome-legend").replaceChildren(...(d.counted ? names.filter((o) => d.outcomes[o] > 0) : []).map((o) =>
    make("li", {}, key(o), `${WORDS[o]} `, make("strong", {}, whole(d.outcomes[o])))));
}

/** Text, touched only when it changes: screen readers announce the verdict, not every poll. */
function set(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

// ---------------------------------------------------------------- tiles

function tiles() {
  const now = samples[samples.length - 1];
  const d = between(sampleAt(now.t - 10), now);
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
  set("goodput-note", routing ? `the lanes can do about ${whole(routing.total_rate)}/s on their fastest paths` : "");
  const paths = last.serving ? last.serving.paths : [];
  const best = Math.max(0, ...paths.map((p) => p.quality ?? 0));
  let information = 0;
  for (const p of paths) information += (p.quality ?? 0) * (d.rows[p.name] || 0);
  set("quality", d.all ? (information / d.all).toFixed(4) : "–");
  const degraded = Object.entries(d.degraded).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  const answers = Math.max(1, d.outcomes.ok + d.outcomes.late);
  set("quality-note", `information gain of a row; best path ${best.toFixed(4)}. ` + (degraded.length
    ? `${percent(Math.min(1, degraded.reduce((x, [, n]) => x + n, 0) / answers))} of answers degraded, because of ${REASONS[degraded[0][0]]}`
    : d.all ? "No answer degraded" : ""));
}

// ---------------------------------------------------------------- charts

const H = 200, LEFT = 44, RIGHT = 8, TOP = 8, BOTTOM = 24;
let W = 520;

/** Returns differences over the window, one for each sample, each over the last few seconds. */
function series() {
  const now = samples[samples.length - 1];
  const out = [];
  for (let i = 1; i < samples.length; i++) {
    const s = samples[i];
    if (s.t < now.t - windowS) continue;
    const before = sampleAt(s.t - SMOOTH_S);
    if (before !== s) out.push(between(before === undefined || before.t >= s.t ? samples[i - 1] : before, s));
  }
  return out;
}

function niceCeiling(x) {
  if (!(x > 0)) return 1;
  const p = 10 ** Math.floor(Math.log10(x));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((m) => m * p >= x) * p;
}

function frame(id, top, unit, label) {
  W = Math.max(240, $(id).clientWidth);
  const chart = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  const now = samples[samples.length - 1].t;
  const x = (t) => LEFT + (W - LEFT - RIGHT) * (1 - (now - t) / windowS);
  const y = (v) => TOP + (H - TOP - BOTTOM) * (1 - Math.min(v, top) / top);
  for (const part of [0, 0.5, 1]) {
    chart.append(svg("line", { x1: LEFT, x2: W - RIGHT, y1: y(top * part), y2: y(top * part), stroke: color("grid"), "stroke-width": 1 }));
    const v = top * part;
    chart.append(svg("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, unit === "%" ? `${100 * v}%` : v >= 10 || v === 0 ? whole(v) : String(Math.round(v * 100) / 100)));
  }
  const steps = W < 400 ? 2 : 4;
  for (let i = 0; i <= steps; i++) {
    const ago = windowS - i * windowS / steps;
    chart.append(svg("text", { x: x(now - ago), y: H - 6, "text-anchor": i === steps ? "end" : i ? "middle" : "start" }, ago ? `${windowS > 60 ? ago / 60 : ago}${windowS > 60 ? " min" : " s"} ago` : "now"));
  }
  $(id).replaceChildren(chart);
  return { chart, x, y };
}

/** Returns the stretches [first, end) with requests. */
function runs(data) {
  const found = [];
  let first = -1;
  data.forEach((d, i) => {
    if (d.counted && first < 0) first = i;
    if (!d.counted && first >= 0) { found.push([first, i]); first = -1; }
  });
  if (first >= 0) found.push([first, data.length]);
  return found.filter(([a, b]) => b - a > 1);
}

function stacked(id, data, names, value, top, unit, label, colorOf) {
  const { chart, x, y } = frame(id, top, unit, label);
  const base = data.map(() => 0);
  for (const name of names) {
    const upper = data.map((d, i) => base[i] + value(d, name));
    for (const [first, end] of runs(data)) {
      const at = data.slice(first, end).map((d, i) => [x(d.t).toFixed(1), first + i]);
      const points = at.map(([px, i]) => `${px},${y(upper[i]).toFixed(1)}`);
      const back = at.map(([px, i]) => `${px},${y(base[i]).toFixed(1)}`).reverse();
      chart.append(svg("polygon", { points: [...points, ...back].join(" "), fill: colorOf(name) }));
    }
    upper.forEach((v, i) => { base[i] = v; });
  }
}

function charts() {
  const data = series();
  latencyChart(data);
  const names = ["ok", ...last.broken];
  const shown = names.filter((o) => o === "ok" || data.some((d) => d.outcomes[o] > 0));
  const peak = Math.max(1, ...data.map((d) => d.counted / d.seconds));
  const end = data[data.length - 1];
  stacked("outcome-chart", data, shown, (d, o) => d.outcomes[o] / d.seconds, niceCeiling(peak), "", "Requests a second by outcome, now: " +
    (end ? shown.map((o) => `${WORDS[o]} ${number(end.outcomes[o] / end.seconds)}`).join(", ") : "none"), color);
  $("chart-legend").replaceChildren(...shown.map((o) => make("li", {}, key(o), WORDS[o])));

  const order = pathOrder();
  const share = (d, p) => d.all ? (d.rows[p] || 0) / d.all : 0;
  stacked("path-chart", data, order, share, 1, "%", "Share of rows by path, now: " +
    (end ? order.map((p) => `${p} ${percent(share(end, p))}`).join(", ") : "none"), (p) => color(`path${Math.min(order.indexOf(p), 5)}`));
  $("path-legend").replaceChildren(...order.map((p, i) => make("li", {}, key(`path${Math.min(i, 5)}`), p)));
}

function latencyChart(data) {
  const lines = { p50: 0.5, p90: 0.9, p99: 0.99 };
  const points = data.map((d) => [d.t, Object.fromEntries(Object.entries(lines).map(([n, q]) => [n, quantile(d.latency, q)])), d.budget || last.default_budget_s]);
  const budget = Math.max(...points.map(([, , b]) => b), last.default_budget_s || 0);
  const most = Math.max(1.3 * budget, ...points.map(([, v]) => v.p99 || 0));
  const top = niceCeiling(1000 * Math.min(most, 4 * budget || most));
  const end = points[points.length - 1];
  const { chart, x, y } = frame("latency-chart", top, "ms", "Latency in milliseconds, now: " +
    (end ? Object.keys(lines).map((n) => `${n} ${ms(end[1][n])}`).join(", ") + `, budget ${ms(end[2])}` : "none"));
  for (const name of Object.keys(lines)) {
    let path = "", open = false;
    for (const [t, v] of points) {
      if (v[name] === null) { open = false; continue; }
      path += `${open ? "L" : "M"}${x(t).toFixed(1)} ${y(1000 * v[name]).toFixed(1)}`;
      open = true;
    }
    if (path) chart.append(svg("path", { d: path, fill: "none", stroke: color(name), "stroke-width": name === "p99" ? 2.2 : 1.6, "stroke-linejoin": "round" }));
  }
  const line = points.length > 1 ? points.map(([t, , b], i) => `${i ? "L" : "M"}${x(t).toFixed(1)} ${y(1000 * b).toFixed(1)}`).join("") :
    `M${LEFT} ${y(1000 * budget)}L${W - RIGHT} ${y(1000 * budget)}`;
  chart.append(svg("path", { d: line, fill: "none", stroke: color("budget"), "stroke-width": 2, "stroke-dasharray": "7 5" }));
  const words = { p50: "half (p50)", p90: "9 of 10 (p90)", p99: "99 of 100 (p99)" };
  $("latency-legend").replaceChildren(...Object.keys(lines).map((n) => make("li", {}, key(n), words[n])),
    make("li", {}, key("budget", true), `usual budget, ${ms(end ? end[2] : last.default_budget_s)}`));
}

// ---------------------------------------------------------------- tables

function row(...cells) {
  return make("tr", {}, ...cells.map(([content, kind]) => make("td", kind ? { class: kind } : {}, ...[content].flat())));
}

function tables() {
  const serving = last.serving;
  if (!serving) return;
  const now = samples[samples.length - 1];
  const d = between(sampleAt(now.t - 10), now);
  const views = Object.fromEntries(serving.routing.paths.map((p) => [p.name, p]));
  const order = pathOrder();
  const byName = Object.fromEntries(serving.paths.map((p) => [p.name, p]));
  $("paths").replaceChildren(...order.map((name, i) => {
    const p = byName[name], expected = views[name].latency_s;
    const share = d.all ? (d.rows[name] || 0) / d.all : 0;
    const precision = p.precision === "fp32" ? "" : `, ${p.precision}`;
    return row([[key(`path${Math.min(i, 5)}`), name]], [meter(share, percent(share))], [p.quality === null ? "–" : p.quality.toFixed(4), "n"],
      [ms(expected["1"]), "n"], [ms(expected["64"]), "n"], [ms(expected["256"]), "n"],
      [`${p.runtime} on ${p.device}${precision}, ${(p.bundle.bytes / 1e6).toFixed(1)} MB`]);
  }));
  const kinds = Object.fromEntries(serving.lanes.map((l) => [l.name, l.kind]));
  $("lanes").replaceChildren(...serving.routing.lanes.map((lane) => {
    const up = lane.alive && lane.breaker === "closed";
    const word = !lane.alive ? "down, restarting" : lane.breaker === "open" ? "breaker open" : lane.breaker === "probing" ? "probing" : "in service";
    return row([`${lane.name} (${[kinds[lane.name], lane.name === lane.device ? null : `on ${lane.device}`].filter(Boolean).join(" ")})`],
      [[make("span", { class: `state ${up ? "good" : "bad"}` }, word)]], [meter(lane.used, `${Math.round(100 * lane.used)}%`)],
      [lane.factor > 1.05 ? `${lane.factor.toFixed(1)}× slower` : lane.factor < 0.95 ? `${(1 / lane.factor).toFixed(1)}× faster` : "as profiled", "n"],
      [whole(last.lane_deaths[lane.name] || 0), "n"]);
  }));
  $("tiers").replaceChildren(...Object.entries(d.tiers).map(([tier, [looked, found]]) =>
    row([tier], [number(looked / d.seconds), "n"], [looked ? meter(found / looked, percent(found / looked)) : "–"])));
  const r = serving.routing;
  const facts = [
    ["policy", r.policy],
    ["arriving", `${number(r.queries_s)} requests/s, ${whole(r.rows_s)} rows/s`],
    ["size of a request", `${whole(r.size_rows.p50 || 0)} rows (p50), ${whole(r.size_rows.p99 || 0)} (p99)`],
    ["waiting", `${whole(r.queued_queries)} requests, ${whole(r.queued_rows)} rows`],
    ...Object.entries(r.prices).map(([device, price]) => [`price of ${device}`, `${number(price)} right answers/s`]),
    ["default budget", ms(last.default_budget_s)],
    ["plans opened", whole(last.generation)],
  ];
  $("routing").replaceChildren(...facts.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
}

// ---------------------------------------------------------------- polling

function take(answer) {
  if (samples.length && answer.now.t < samples[samples.length - 1].t) samples = [];
  // The sample of this moment is drawn but not kept: those of the history are evenly spaced.
  samples = samples.filter((s) => !s.passing);
  const newest = samples.length ? samples[samples.length - 1].t : -1;
  for (const s of [...answer.history.filter((h) => h.t > newest), { ...answer.now, passing: true }]) {
    const before = samples[samples.length - 1];
    // An idle server takes no samples: nothing happened until just before this one.
    if (before && s.t - before.t > 3 * SPACING_S) samples.push({ ...before, t: before.t + SPACING_S }, { ...before, t: s.t - SPACING_S });
    samples.push(s);
  }
  while (samples.length > 2 && samples[1].t < answer.now.t - KEPT_S - VERDICT_S) samples.shift();
  last = answer;
  lastHeard = Date.now();
}

function draw() {
  verdict();
  tiles();
  charts();
  tables();
  set("model", last.model ? `· ${last.model}` : "");
  set("about", `up ${duration(samples[samples.length - 1].t)} · version ${last.version}${paused ? " · paused" : ""}`);
}

function silent() {
  $("verdict").className = "verdict broken";
  set("mark", "✘");
  set("word", "No answer");
  set("sentence", lastHeard === null ? "The server does not answer." : `The server has not answered since ${new Date(lastHeard).toLocaleTimeString()}. What is below is from then.`);
  set("because", "Asking again every second.");
  document.title = "✘ No answer · Polyrec";
}

async function poll() {
  if (!paused && !document.hidden) {
    try {
      const kept = samples.filter((s) => !s.passing);
      const since = kept.length ? kept[kept.length - 1].t : -1;
      const answer = await fetch(`/v1/status?since=${since}`, { signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(answer.status);
      take(await answer.json());
      draw();
    } catch (error) {
      if (last === null || Date.now() - lastHeard > 3 * POLL_MS) silent();
      if (error instanceof TypeError || error instanceof DOMException || error.name === "Error") return;
      throw error;
    } finally {
      setTimeout(poll, POLL_MS);
    }
  } else setTimeout(poll, POLL_MS);
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  set("theme", dark ? "Light" : "Dark");
}

$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme !== "dark"));
const preference = matchMedia("(prefers-color-scheme: dark)");
preference.addEventListener("change", (e) => theme(e.matches));
theme(preference.matches);
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  set("pause", paused ? "Resume" : "Pause");
  if (last) draw();
});
$("window").addEventListener("change", (e) => {
  windowS = Number(e.target.value);
  if (last) draw();
});
poll();
