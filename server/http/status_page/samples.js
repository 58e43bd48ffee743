// The samples of the last five minutes. Counts are cumulative: everything shown is a difference of two samples.

const KEPT_S = 300;
const SMOOTH_S = 6;
const SPACING_S = 2;
export const VERDICT_S = 60;

/** last: the newest answer of /v1/status. samples: oldest first; the last is of this moment. */
export const view = { last: null, samples: [] };

/** Takes an answer of /v1/status. */
export function take(answer) {
  if (view.samples.length && answer.now.t < newest().t) view.samples = [];
  // The sample of this moment is drawn but not kept: those of the history are evenly spaced.
  const samples = view.samples.filter((s) => !s.passing);
  const kept = samples.length ? samples[samples.length - 1].t : -1;
  for (const s of [...answer.history.filter((h) => h.t > kept), { ...answer.now, passing: true }]) {
    const before = samples[samples.length - 1];
    // An idle server takes no samples: nothing happened until just before this one.
    if (before && s.t - before.t > 3 * SPACING_S) samples.push({ ...before, t: before.t + SPACING_S }, { ...before, t: s.t - SPACING_S });
    samples.push(s);
  }
  while (samples.length > 2 && samples[1].t < answer.now.t - KEPT_S - VERDICT_S) samples.shift();
  view.samples = samples;
  view.last = answer;
}

/** Returns the time after which samples are missing, for the next question. */
export function knownUntil() {
  const kept = view.samples.filter((s) => !s.passing);
  return kept.length ? kept[kept.length - 1].t : -1;
}

export const newest = () => view.samples[view.samples.length - 1];

/** Returns the moment of `t`, by the server's clock. */
export const momentOf = (t) => new Date(1000 * (view.last.unix_time - newest().t + t));

/** Returns the last sample at or before `t`, else the first. */
function sampleAt(t) {
  let found = view.samples[0];
  for (const s of view.samples) {
    if (s.t <= t) found = s;
    else break;
  }
  return found;
}

/** Returns what happened in the last seconds. */
export const recent = (seconds) => between(sampleAt(newest().t - seconds), newest());

/** Returns what happened up to each sample, each over the last few seconds. */
export function series() {
  const out = [];
  for (let i = 1; i < view.samples.length; i++) {
    const s = view.samples[i];
    const before = sampleAt(s.t - SMOOTH_S);
    out.push(between(before.t >= s.t ? view.samples[i - 1] : before, s));
  }
  return out;
}

/** Returns the differences between two samples. */
function between(a, b) {
  const { last } = view;
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
  const waited = (b.waited_s - a.waited_s) / seconds;
  return { t: b.t, seconds, outcomes, counted, rows, all, inTime, latency, degraded, tiers, waited, budget: b.budget_s };
}

/** Interpolated as Prometheus does; null if there was no answer. */
export function quantile(counts, q) {
  const edges = view.last.edges_s;
  const all = counts.reduce((x, y) => x + y, 0);
  if (all <= 0) return null;
  let below = 0;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] > 0 && below + counts[i] >= q * all) {
      if (i === edges.length) return edges[i - 1];
      const low = i ? edges[i - 1] : 0;
      return low + (edges[i] - low) * (q * all - below) / counts[i];
    }
    below += counts[i];
  }
  return null;
}

/** Returns the paths in service, best first, as colors and stacks are ordered. */
export function pathsByQuality() {
  const paths = view.last.serving ? [...view.last.serving.paths] : [];
  return paths.sort((a, b) => (b.quality ?? 0) - (a.quality ?? 0));
}

/** Returns the mean quality of the rows answered; null without rows, or if no path's quality is known. */
export function meanQuality(d) {
  const known = pathsByQuality().filter((p) => p.quality !== null);
  const rows = known.reduce((n, p) => n + (d.rows[p.name] || 0), 0);
  return rows > 0 ? known.reduce((sum, p) => sum + p.quality * (d.rows[p.name] || 0), 0) / rows : null;
}

/** Returns the quality of the best path; null if unknown. */
export const bestQuality = () => pathsByQuality()[0]?.quality ?? null;
