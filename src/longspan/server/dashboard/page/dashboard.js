// Reads the stream of frames and shows each one. The page works without it up to its headings.

import { drawLines, drawTimeline } from "./charts.js";
import { askModel, eventsOf, headers, startChat } from "./chat.js";

const KEPT = 120; // frames: a minute
const RETRY = 2000; // ms
const element = (id) => document.getElementById(id);
const history = { rate: [], useful: [], stale: [] };
let newest = null;
let reading = null;

function node(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

const number = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(0)} %`);

function state(text, kind) {
  const pill = element("state");
  if (pill.textContent !== text) pill.textContent = text; // a screen reader says changes only
  pill.className = `pill ${kind}`;
}

function showRing(ring) {
  const delay = ring.link_delay_ms ? `, ${ring.link_delay_ms} ms each way are emulated on every link` : "";
  element("ring-summary").textContent =
    `${ring.layers} layers on ${ring.stages.length} ${ring.stages.length === 1 ? "stage" : "stages"}, ` +
    `formed ${ring.epoch === 1 ? "once" : `${ring.epoch} times`}${delay}`;
  const coordinator = node("li", undefined, "ready");
  coordinator.append(node("strong", "coordinator"), node("span", "API, planner, drafts; the last stage answers it"));
  element("ring").replaceChildren(coordinator, ...ring.stages.map((stage) => {
    const card = node("li", undefined, stage.state);
    const trip = stage.round_trip_ms === null ? "no link between" : `round trip ${number(stage.round_trip_ms)} ms`;
    card.append(
      node("strong", `stage ${stage.index}: layers ${stage.start} to ${stage.end - 1}`),
      node("span", `${stage.state}${stage.detail ? `: ${stage.detail}` : ""}, ${stage.address}`),
      node("span", `${trip}, compute ${number(stage.compute_ms)} ms`),
    );
    if (stage.memory_bytes) card.append(node("span", `${(stage.memory_bytes / 2 ** 20).toFixed(0)} MiB`));
    return card;
  }));
}

function showFigures(figures) {
  const tiles = [
    ["tokens a second", number(figures.tokens_per_second)],
    ["running", `${figures.running} of ${figures.slots}`],
    ["waiting", figures.waiting],
    ["KV cells in use", percent(figures.kv_usage)],
    ["iterations in flight", figures.in_flight],
    ["useful rows in flight", number(figures.useful_rows)],
    ["stale rows in flight", number(figures.stale_rows)],
    ["tokens a trip", number(figures.tokens_per_traversal, 2)],
    ["cost model error", percent(figures.prediction_error)],
    ["guard of mixing", figures.guard ?? "–"],
    ["finished", figures.finished],
    ["failed", figures.failed],
  ];
  element("figures").replaceChildren(...tiles.map(([name, value]) => {
    const tile = node("div");
    tile.append(node("dt", name), node("dd", value));
    return tile;
  }));
}

function showAcceptance(shares) {
  element("accept-none").hidden = shares.length > 0;
  element("accept").replaceChildren(...shares.map((share, place) => {
    const bar = node("progress");
    bar.max = 1;
    bar.value = share;
    bar.setAttribute("aria-label", `place ${place + 1}`);
    const line = node("li");
    line.append(node("span", `place ${place + 1}`), bar, node("span", percent(share)));
    return line;
  }));
}

function showRequests(requests, hidden) {
  element("requests-none").hidden = requests.length > 0 || hidden > 0;
  const rows = requests.map((request) => {
    const row = node("tr");
    const cells = [request.sequence, request.state, request.prompt_tokens, request.cached_tokens,
      request.generated_tokens, request.max_tokens, number(request.tokens_per_second), `${number(request.seconds)} s`];
    row.append(...cells.map((cell) => node("td", cell)));
    return row;
  });
  if (hidden) {
    const row = node("tr"), cell = node("td", `and ${hidden} more`);
    cell.colSpan = 8;
    row.append(cell);
    rows.push(row);
  }
  element("requests").replaceChildren(...rows);
}

function draw() {
  if (!newest) return;
  const { ring, shown_seconds: seconds, figures, now } = newest;
  // From here on in seconds before now.
  const trips = newest.trips.map(([planned, completed, kind, rows, work]) =>
    [planned - now, completed - now, kind, rows, work.map(([begin, end]) => [begin - now, end - now])]);
  drawTimeline(element("timeline"), trips, ring.stages.length, seconds);
  const busy = ring.stages.map((stage) => {
    const worked = trips.reduce((sum, trip) => {
      const [begin, end] = trip[4][stage.index] || [0, 0];
      return sum + Math.max(0, Math.min(0, end) - Math.max(-seconds, begin));
    }, 0);
    return `stage ${stage.index} computed ${percent(Math.min(1, worked / seconds))} of the time`;
  });
  const text = `${trips.length} iterations in ${seconds} s; ${busy.join(", ")}.`;
  element("timeline-text").textContent = text;
  element("timeline").setAttribute("aria-label", text);
  drawLines(element("rate"), [{ name: "decode", values: history.rate }], KEPT);
  element("rate").setAttribute("aria-label", `Tokens a second, now ${number(figures.tokens_per_second)}`);
  drawLines(element("flight"), [
    { name: "decode", values: history.useful },
    { name: "stale", values: history.stale, dashed: true },
  ], KEPT);
  element("flight").setAttribute("aria-label",
    `Rows in flight, now ${number(figures.useful_rows)} useful and ${number(figures.stale_rows)} stale`);
}

function show(frame) {
  if (frame.error) return state(frame.error, "bad");
  newest = frame;
  element("model").textContent = frame.model;
  askModel(frame.model);
  state(frame.ready.ready ? "ready" : frame.ready.missing.join(" "), frame.ready.ready ? "ready" : "bad");
  showRing(frame.ring);
  showFigures(frame.figures);
  showAcceptance(frame.figures.accepted);
  showRequests(frame.requests, frame.hidden_requests);
  for (const [name, value] of [["rate", frame.figures.tokens_per_second], ["useful", frame.figures.useful_rows],
    ["stale", frame.figures.stale_rows]]) {
    history[name].push(value || 0);
    if (history[name].length > KEPT) history[name].shift();
  }
  draw();
}

async function watch() {
  reading?.abort();
  const mine = reading = new AbortController();
  while (!mine.signal.aborted) {
    try {
      const response = await fetch("/dashboard/events", { headers: headers(), signal: mine.signal });
      if (response.status === 401) {
        element("key-box").open = true;
        return state("this server needs an API key, see below", "bad");
      }
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      for await (const frame of eventsOf(response)) show(frame);
      throw new Error("the server ended the stream");
    } catch (error) {
      if (mine.signal.aborted) return;
      state(`no connection: ${error.message}`, "bad");
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY));
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("longspan-theme", theme);
  element("theme").setAttribute("aria-pressed", String(theme === "dark"));
  draw();
}

const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
setTheme(localStorage.getItem("longspan-theme") || (dark ? "dark" : "light"));
element("theme").addEventListener("click", () =>
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
window.addEventListener("resize", draw);
document.addEventListener("longspan-key", watch);
// A tab that nobody looks at costs the server nothing.
document.addEventListener("visibilitychange", () => (document.hidden ? reading?.abort() : watch()));
startChat();
watch();
