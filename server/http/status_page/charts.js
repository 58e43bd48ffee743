// The charts, by uPlot: lines and stacks of the last minutes, events as markers, one cursor and one zoom for all.
//
// Dragging over a chart zooms all of them, a double click or Escape shows the present again; with a chart in focus the
// arrow keys move the cursor. The legend has the values at the cursor, else the newest.

import { bestQuality, meanQuality, momentOf, newest, pathsByQuality, quantile, series, view } from "./samples.js";
import { $, key, make, ms, number, OUTCOMES, percent, set } from "./words.js";

const HEIGHT = 210;
const NEAR_PX = 8;
const EVENT_COLORS = {
  lane_died: "bad", lane_stalled: "bad", overload_began: "bad", records_lost: "bad", rows_lost: "bad",
  lane_back: "good", lane_resumed: "good", overload_ended: "good", records_written: "good", rows_found: "good",
};
export const eventColor = (event) => EVENT_COLORS[event.kind] ?? "event";

/** Shown times in seconds since the server's start, if zoomed; else the last `span` seconds. */
const range = { zoom: null, span: 60 };

/**
 * id: of the chart's elements. title: for screen readers. lines: the lines of the differences of the samples, those of a
 * stack from its bottom. reach: [least, most] of the y axis, of the values that are shown. tick, value: a number in words.
 */
const CHARTS = [
  {
    id: "latency", title: "Latency in milliseconds",
    lines: (data) => [
      ...[["p50", "half (p50)", 0.5], ["p90", "9 of 10 (p90)", 0.9], ["p99", "99 of 100 (p99)", 0.99]].map(([name, label, q]) =>
        ({ name, label, width: name === "p99" ? 2.2 : 1.6, values: data.map((d) => quantile(d.latency, q)) })),
      { name: "budget", label: "usual budget", width: 2, dash: [7, 5], values: data.map((d) => d.budget || view.last.default_budget_s) },
    ],
    reach: (shown) => {
      const budget = Math.max(...shown.budget), p99 = Math.max(0, ...shown.p99.filter((v) => v !== null));
      return [0, niceCeiling(1000 * Math.min(Math.max(1.3 * budget, p99), 4 * budget)) / 1000];
    },
    tick: (v) => number(1000 * v), value: ms,
  },
  {
    id: "outcomes", title: "Requests a second by outcome", stacked: true,
    lines: (data) => ["ok", ...view.last.broken].filter((o) => o === "ok" || data.some((d) => d.outcomes[o] > 0)).map((o) =>
      ({ name: o, label: OUTCOMES[o], values: data.map((d) => d.outcomes[o] / d.seconds) })),
    reach: (shown) => [0, niceCeiling(Math.max(1, ...shown.top))],
    tick: number, value: (v) => `${number(v)}/s`,
  },
  {
    id: "path", title: "Share of rows by path", stacked: true,
    lines: (data) => pathsByQuality().map(({ name }, i) =>
      ({ name, label: name, color: `path${Math.min(i, 5)}`, values: data.map((d) => d.all ? (d.rows[name] || 0) / d.all : null) })),
    reach: () => [0, 1],
    tick: (v) => `${Math.round(100 * v)}%`, value: percent,
  },
  {
    id: "gain", title: "Quality of a row",
    lines: (data) => [
      { name: "answered", label: "answered", color: "p90", width: 2.2, values: data.map(meanQuality) },
      { name: "best", label: "by the best path", color: "path0", width: 2, dash: [7, 5], values: data.map(bestQuality) },
    ],
    reach: () => {
      const known = pathsByQuality().map((p) => p.quality).filter((q) => q !== null);
      if (!known.length) return [0, 1];
      const least = Math.min(...known), most = Math.max(...known);
      const room = 0.15 * (most - least) || 0.05 * Math.abs(most) || 0.1;
      return [least - room, most + room];
    },
    tick: (v) => v.toFixed(4), value: (v) => v.toFixed(4),
  },
];

/** By id: the plot, its lines, and what it was built for. */
const plots = {};
let theme = "";

export function showLast(seconds) {
  range.span = seconds;
  range.zoom = null;
}

/** Draws all charts; again with other colors if the theme has changed. */
export function charts() {
  const data = series();
  for (const chart of CHARTS) chartOf(chart, data);
  $("live").hidden = range.zoom === null;
}

function chartOf(chart, data) {
  const lines = chart.lines(data);
  for (const line of lines) line.color ??= line.name;
  const columns = plotted(chart, data, lines);
  const built = `${theme} ${lines.map((line) => `${line.name} ${line.color}`).join()}`;
  let plot = plots[chart.id];
  if (!plot || plot.built !== built) {
    if (plot) plot.uplot.destroy();
    plot = plots[chart.id] = { built, chart };
    plot.lines = lines;
    plot.data = data;
    plot.uplot = new uPlot(options(plot), columns, $(`${chart.id}-chart`));
  } else {
    Object.assign(plot, { lines, data });
    plot.uplot.setData(columns);
  }
  legend(plot);
  const now = lines.map((line) => `${line.label} ${valueOf(plot, line, data.length - 1)}`).join(", ");
  $(`${chart.id}-chart`).setAttribute("aria-label", `${chart.title}, now: ${now}`);
}

/** Returns uPlot's columns. A stack is drawn from its top, each area down to 0, so that the lower ones cover it. */
function plotted(chart, data, lines) {
  const times = data.map((d) => d.t);
  if (!chart.stacked) return [times, ...lines.map((line) => line.values)];
  const sums = [];
  lines.forEach((line, i) => sums.push(line.values.map((v, at) => v === null || !data[at].counted ? null : v + (i ? sums[i - 1][at] : 0))));
  return [times, ...sums.reverse()];
}

function options(plot) {
  const { chart, lines } = plot;
  const drawn = chart.stacked ? [...lines].reverse() : lines;
  const grid = { stroke: css("grid"), width: 1 };
  const axis = { stroke: css("quiet"), font: `12px ${getComputedStyle(document.body).fontFamily}`, ticks: { show: false }, grid };
  return {
    width: $(`${chart.id}-chart`).clientWidth || 300, height: HEIGHT, padding: [10, 16, 0, 0],
    legend: { show: false },
    scales: { x: { time: false, range: shownTimes }, y: { range: () => reachOf(plot) } },
    axes: [
      { ...axis, size: 28, gap: 8, grid: { show: false }, splits: timeSplits, values: (_, splits) => splits.map(ago) },
      { ...axis, size: (u, words) => axisWidth(u, words, axis.font), gap: 6, space: 55, values: (_, splits) => splits.map(chart.tick) },
    ],
    series: [{}, ...drawn.map((line) => ({
      label: line.label, points: { show: false }, width: chart.stacked ? 0 : line.width, dash: line.dash,
      stroke: css(line.color), fill: chart.stacked ? css(line.color) : undefined,
    }))],
    cursor: {
      y: false, points: { show: !chart.stacked, size: 7 },
      drag: { setScale: false, x: true, y: false, dist: 8 },
      // a drag zooms by its own chart; the others follow on the next drawing
      sync: { key: "polyrec", setSeries: false, filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } },
      bind: { dblclick: () => () => { zoomTo(null); return null; } },
    },
    hooks: {
      draw: [drawEvents],
      setCursor: [() => legend(plot)],
      setSelect: [(u) => {
        if (!u.select.width) return;
        zoomTo([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
    },
  };
}

// ---------------------------------------------------------------- axes

const shownTimes = () => range.zoom ?? [newest().t - range.span, newest().t];

export function zoomTo(times) {
  if (times && times[1] - times[0] < 4) return;
  range.zoom = times;
  charts();
}

function reachOf({ chart, lines, data }) {
  const [from, to] = shownTimes();
  const seen = data.map((d, i) => i).filter((i) => data[i].t >= from && data[i].t <= to);
  const shown = Object.fromEntries(lines.map((line) => [line.name, seen.map((i) => line.values[i])]));
  shown.top = seen.map((i) => lines.reduce((sum, line) => sum + line.values[i], 0));
  if (!seen.length) shown.budget = [view.last.default_budget_s];
  return chart.reach(shown);
}

function niceCeiling(x) {
  if (!(x > 0)) return 1;
  const p = 10 ** Math.floor(Math.log10(x));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((m) => m * p >= x * (1 - 1e-9)) * p;
}

/** Returns round distances from now, few enough for their labels. */
function timeSplits(u, _, from, to) {
  const now = newest().t, room = Math.max(2, Math.floor(u.width / 90));
  const step = [1, 2, 5, 10, 15, 20, 30, 60, 120].find((s) => (to - from) / s <= room) ?? 300;
  const splits = [];
  for (let back = Math.ceil((now - to - 1e-6) / step); now - back * step >= from - 1e-6; back++) splits.unshift(now - back * step);
  return splits;
}

function ago(t) {
  const seconds = Math.round(newest().t - t);
  if (seconds === 0) return "now";
  return seconds >= 60 && seconds % 60 === 0 ? `−${seconds / 60} min` : `−${seconds} s`;
}

/** Returns a width at which no label is cut. */
function axisWidth(u, words, font) {
  if (!words) return 40;
  u.ctx.save();
  u.ctx.font = font;
  const widest = Math.max(...words.map((word) => u.ctx.measureText(word).width));
  u.ctx.restore();
  return Math.ceil(widest) + 10;
}

// ---------------------------------------------------------------- legends and events

function valueOf({ chart, data }, line, i) {
  const value = data[i] && line.values[i];
  return value == null || (chart.stacked && !data[i].counted) ? "–" : chart.value(value);
}

/** Shows the values at the cursor, else the newest. */
function legend(plot) {
  const { uplot, chart, lines, data } = plot;
  if (!uplot) return;
  const pointed = uplot.cursor.left >= 0;
  const i = pointed ? uplot.posToIdx(uplot.cursor.left) : data.length - 1;
  $(`${chart.id}-legend`).replaceChildren(...lines.map((line) => make("li", {}, key(line.color, !!line.dash), `${line.label} `,
    make("strong", {}, valueOf(plot, line, i)))));
  const t = pointed ? uplot.posToVal(uplot.cursor.left, "x") : null;
  const near = pointed ? view.last.events.filter((e) => Math.abs(uplot.valToPos(e.t, "x") - uplot.cursor.left) <= NEAR_PX) : [];
  set(`${chart.id}-at`, !pointed ? "now" : near.length ? near.map((e) => e.text).join("; ")
    : `${Math.max(0, Math.round(newest().t - t))} s ago, ${momentOf(t).toLocaleTimeString()}`);
}

function drawEvents(u) {
  const { ctx } = u, { left, top, width, height } = u.bbox, px = uPlot.pxRatio;
  ctx.save();
  for (const event of view.last.events) {
    const x = u.valToPos(event.t, "x", true);
    if (x < left || x > left + width) continue;
    ctx.strokeStyle = ctx.fillStyle = css(eventColor(event));
    ctx.lineWidth = 1.5 * px;
    ctx.setLineDash([2 * px, 3 * px]);
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x - 5 * px, top - 8 * px);
    ctx.lineTo(x + 5 * px, top - 8 * px);
    ctx.lineTo(x, top);
    ctx.fill();
  }
  ctx.restore();
}

// ---------------------------------------------------------------- theme, size, keys

/** Returns a color of the style sheet, as canvases need it. */
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function recolor(name) {
  theme = name;
  if (view.last) charts();
}

function moveCursor(to) {
  for (const { uplot } of Object.values(plots)) uplot.setCursor({ left: to, top: to < 0 ? to : 10 }, true);
}

export function listen() {
  const resized = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const plot = plots[target.id.replace("-chart", "")];
      if (plot && contentRect.width > 0 && plot.uplot.width !== contentRect.width) plot.uplot.setSize({ width: contentRect.width, height: HEIGHT });
    }
  });
  for (const { id } of CHARTS) {
    resized.observe($(`${id}-chart`));
    $(`${id}-chart`).addEventListener("keydown", (e) => {
      const { uplot } = plots[id] ?? {};
      if (!uplot) return;
      const wide = uplot.over.clientWidth, step = wide / 30;
      const at = uplot.cursor.left >= 0 ? uplot.cursor.left : wide;
      if (e.key === "ArrowLeft") moveCursor(Math.max(0, at - step));
      else if (e.key === "ArrowRight") moveCursor(Math.min(wide, at + step));
      else if (e.key === "Escape") { moveCursor(-10); zoomTo(null); }
      else return;
      e.preventDefault();
    });
    $(`${id}-chart`).addEventListener("blur", () => moveCursor(-10));
  }
  $("live").addEventListener("click", () => zoomTo(null));
}
