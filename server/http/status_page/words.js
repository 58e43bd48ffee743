// Words, numbers and elements of the page. All text is set as text; nothing from the server ever becomes markup.

export const OUTCOMES = {
  ok: "in time", late: "late", overloaded: "rejected (429)", expired: "expired (504)",
  unavailable: "unavailable (503)", error: "error (500)",
};
export const CAUSES = {
  late: "were answered after their budget: execution takes longer than routing predicted",
  overloaded: "were rejected on arrival: more arrives than can be answered in time",
  expired: "expired in the queue",
  unavailable: "found no lane alive, or the server was still loading",
  error: "failed inside the server; its log says why",
};
export const REASONS = { load: "high load", deadline: "short latency budgets", failure: "failed lanes",
  probe: "probes of lanes that were slow or had failed" };
export const METRICS = { information: "information gain", auc: "AUC", mrr: "MRR", ndcg: "NDCG", accuracy: "accuracy" };

// ---------------------------------------------------------------- numbers

export const whole = (x) => Math.round(x).toLocaleString("en");
export const number = (x) => x == null ? "–" : Math.abs(x) < 0.005 ? "0" : Math.abs(x) >= 100 ? whole(x) : String(Number(x.toPrecision(3)));
export const ms = (s) => s == null ? "–" : `${number(1000 * s)} ms`;
// Cut, not rounded: 98.97% is no 99%.
export const percent = (share) => share > 0 && share < 0.001 ? "under 0.1%" : `${Math.floor(share * 1000 + 1e-9) / 10}%`;

export function duration(s) {
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.round(s / 86400)} days`;
}

// ---------------------------------------------------------------- elements

export const $ = (id) => document.getElementById(id);

/** Sets text only when it changes: screen readers announce the verdict, not every poll. */
export function set(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

export function make(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

export const color = (name) => `var(--${name})`;

/** Returns the colored square before a name in a legend. */
export function key(name, dashed = false) {
  const e = make("span", { class: dashed ? "key dashed" : "key", "aria-hidden": "true" });
  // a style set by script is allowed by the policy, an attribute `style` is not
  if (dashed) e.style.borderColor = color(name);
  else e.style.background = color(name);
  return e;
}

export function meter(share, text) {
  const fill = make("i");
  fill.style.width = `${Math.min(100, Math.max(0, 100 * share))}%`;
  return [make("span", { class: "meter", "aria-hidden": "true" }, fill), text];
}
