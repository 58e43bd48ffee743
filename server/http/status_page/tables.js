// The tables: paths, lanes, memory tiers, routing and events. On a phone each row is a card (page.css).

import { eventColor } from "./charts.js";
import { momentOf, newest, pathsByQuality, recent, view } from "./samples.js";
import { $, duration, key, make, meter, ms, number, percent, set, whole } from "./words.js";

/** Fills a table. rows: of cells, each a text or elements, by column of the table's head. */
function fill(id, rows) {
  const heads = [...$(id).parentElement.querySelectorAll("th")];
  $(id).replaceChildren(...rows.map((cells) => make("tr", { role: "row" }, ...cells.map((content, i) =>
    make("td", { role: "cell", class: heads[i].className, "data-label": heads[i].textContent }, make("span", {}, ...[content].flat()))))));
}

export function tables() {
  const { last } = view;
  events();
  if (!last.serving) return;
  const d = recent(10);
  paths(d);
  const kinds = Object.fromEntries(last.serving.lanes.map((l) => [l.name, l.kind]));
  fill("lanes", last.serving.routing.lanes.map((lane) => {
    const up = lane.alive && lane.breaker === "closed";
    const word = !lane.alive ? "down, restarting" : lane.breaker === "open" ? "breaker open" : lane.breaker === "probing" ? "probing" : "in service";
    const where = [kinds[lane.name], lane.name === lane.device ? null : `on ${lane.device}`].filter(Boolean).join(" ");
    return [`${lane.name} (${where})`, make("b", { class: up ? "good" : "bad" }, word), meter(lane.used, `${Math.round(100 * lane.used)}%`),
      lane.factor > 1.05 ? `${lane.factor.toFixed(1)}× slower` : lane.factor < 0.95 ? `${(1 / lane.factor).toFixed(1)}× faster` : "as profiled",
      whole(last.lane_deaths[lane.name] || 0)];
  }));
  fill("tiers", Object.entries(d.tiers).map(([tier, [looked, found]]) =>
    [tier, number(looked / d.seconds), looked ? meter(found / looked, percent(found / looked)) : "–"]));
  const r = last.serving.routing;
  const facts = [
    ["policy", r.policy],
    ["arriving", `${number(r.queries_s)} requests/s, ${whole(r.demand_rows_s)} rows/s`],
    ["size of a request", `${whole(r.size_rows.p50 || 0)} rows (p50), ${whole(r.size_rows.p99 || 0)} (p99)`],
    ["waiting", `${whole(r.queued_queries)} requests, ${whole(r.queued_rows)} rows`],
    ...Object.entries(r.prices).map(([device, price]) => [`price of ${device}`, `${number(price)}/s`]),
    ["default budget", ms(last.default_budget_s)],
    ["plans opened", whole(last.generation)],
    ...(last.rollout ? [["canary", `${last.rollout.canary_version}, ${percent(last.rollout.share)} of the requests, for ${duration(last.rollout.age_s)}: ${last.rollout.reason}`]] : []),
    ...(last.live_quality ? [["live quality", judged(last.live_quality)]] : []),
  ];
  $("routing").replaceChildren(...facts.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
}

function paths(d) {
  const live = view.last.live_quality;
  const views = Object.fromEntries(view.last.serving.routing.paths.map((p) => [p.name, p]));
  fill("paths", pathsByQuality().map((p, i) => {
    const expected = views[p.name].latency_s;
    const share = d.all ? (d.rows[p.name] || 0) / d.all : 0;
    const precision = p.precision === "fp32" ? "" : `, ${p.precision}`;
    return [[key(`path${Math.min(i, 5)}`), p.name], meter(share, percent(share)), (p.quality === null ? "–" : p.quality.toFixed(4)) + liveQuality(live, p.name),
      ms(expected["1"]), ms(expected["64"]), ms(expected["256"]),
      `${p.runtime} on ${p.device}${precision}, ${(p.bundle.bytes / 1e6).toFixed(1)} MB`];
  }));
}

/** Returns how many requests live quality is measured on, and whether labels stopped: the newest tenth has none. */
function judged(live) {
  if (!live.requests) return `no requests yet; each counts ${duration(live.final_after_s)} after its answer`;
  const labeled = Object.values(live.clients).reduce((sum, n) => sum + n, 0);
  const without = live.until_s - (live.labeled_s ?? live.since_s);
  const stopped = labeled && without > 0.1 * (live.until_s - live.since_s) ? `, none in the newest ${duration(without)}` : "";
  return `${whole(live.requests)} requests, ${labeled ? whole(labeled) : "none"} labeled${stopped}`;
}

/** Returns a path's live information gain with its interval, and what it moved the path's value by. */
function liveQuality(live, name) {
  const gain = live && live.paths[name] && live.paths[name].information;
  if (!gain) return "";
  const by = live.value_changes[name] || 0;
  return `; live ${gain[0].toFixed(4)} [${gain[1].toFixed(4)}, ${gain[2].toFixed(4)}]`
    + (by ? `, value ${by > 0 ? "+" : "−"}${Math.abs(by).toFixed(4)}` : "");
}

function events() {
  const known = view.last.events.slice(-8).reverse();
  $("events").replaceChildren(...known.map((event) => make("li", {}, key(eventColor(event)),
    make("time", { datetime: momentOf(event.t).toISOString() }, `${duration(Math.max(0, newest().t - event.t))} ago`), ` ${event.text}`)));
  set("no-events", known.length ? "" : "None since the start.");
}
