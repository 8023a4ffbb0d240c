// Elements, text and times. All text goes through text nodes, so no name can become markup.

const SVG = "http://www.w3.org/2000/svg";

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Show items as children. An unchanged child stays the same element, and a changed one keeps the keyboard's focus.
export function list(container, items, key, make) {
  const before = new Map([...container.children].map((child) => [child.dataset.key, child]));
  const focused = container.contains(document.activeElement) ? document.activeElement : null;
  const place = focused && [focused.closest("[data-key]").dataset.key, focused.dataset.focus];
  const children = items.map((item) => {
    const text = JSON.stringify(item);
    const known = before.get(String(key(item)));
    if (known && known.shown === text) return known;
    const child = make(item);
    child.dataset.key = key(item);
    child.shown = text;
    return child;
  });
  const same = children.length === container.children.length && children.every((child, at) => container.children[at] === child);
  if (same) return;
  container.replaceChildren(...children);
  if (!place) return;
  const back = children.find((child) => child.dataset.key === place[0]);
  back?.querySelector(place[1] ? `[data-focus="${place[1]}"]` : "a, button")?.focus();
}

// Times ---------------------------------------------------------------------------------------------------------------

let skewMs = 0; // of the coordinator's clock against ours
let stoppedMs = null; // when the coordinator was heard last, while it is silent: what is shown was so then

export const setClock = (epochMs) => { skewMs = epochMs - Date.now(); };
export const stopClock = (atMs) => { stoppedMs = atMs === null ? null : atMs + skewMs; };
export const now = () => stoppedMs ?? Date.now() + skewMs;

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${ms < 10 ? Math.round(ms * 10) / 10 : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.floor(hours / 24)} days`;
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

export function time(ms) {
  const at = new Date(ms);
  const isToday = at.toDateString() === new Date(now()).toDateString();
  return isToday ? CLOCK.format(at) : `${DAY.format(at)}, ${CLOCK.format(at)}`;
}

// A time that has passed since, which goes on by itself.
export function since(ms, suffix = "") {
  return h("time", { datetime: new Date(ms).toISOString(), title: new Date(ms).toString(), "data-since": ms, "data-suffix": suffix },
    duration(Math.max(0, now() - ms)) + suffix);
}

// A time that is shown with its day once that is over.
export const when = (ms) => h("time", { datetime: new Date(ms).toISOString(), title: new Date(ms).toString(), "data-at": ms }, time(ms));

setInterval(() => {
  for (const shown of document.querySelectorAll("[data-since]")) change(shown, duration(Math.max(0, now() - Number(shown.dataset.since))) + shown.dataset.suffix);
  for (const shown of document.querySelectorAll("[data-at]")) change(shown, time(Number(shown.dataset.at)));
}, 1000);

function change(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Small parts ----------------------------------------------------------------------------------------------------------

const NUMBER = new Intl.NumberFormat("en");
export const number = (value) => NUMBER.format(value);
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export const chip = (text, kind = text) => h("span", { class: `chip ${kind}` }, text);
export const cell = (label, ...content) => h("td", { "data-label": label }, h("span", { class: "value" }, content));
export const numeric = (label, value) => h("td", { "data-label": label, class: "number" }, h("span", { class: "value" }, number(value)));
export const groupLink = (name) => h("a", { href: `/?${new URLSearchParams({ group: name })}`, "data-focus": "group" }, name);

// `<client id>-<uuid>` with the first part of the uuid; the whole name is in the title.
const UUID = /-([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
export const shortName = (name) => name.replace(UUID, "-$1");
export const memberName = (name) => h("span", { title: name }, shortName(name));
export const memberNames = (names) => names.flatMap((name, at) => (at ? [", ", memberName(name)] : [memberName(name)]));
export const took = (label, ms) => h("td", { "data-label": label, class: "took" }, h("span", { class: "value" }, duration(ms)));

export function fact(label, value, kind = "") {
  return h("div", { class: `fact ${kind}` }, h("dt", {}, label), h("dd", {}, value));
}

export function table(caption, columns) {
  const head = columns.map((column) => h("th", { scope: "col", class: column.startsWith("#") ? "number" : null }, column.replace("#", "")));
  const body = h("tbody");
  const element = h("div", { class: "scroll" }, h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, head)), body));
  return { element, body };
}

export function pager(name, turn) {
  const before = h("button", { type: "button", onclick: () => turn(-1), "aria-label": `Previous page of ${name}` }, "‹ Previous");
  const after = h("button", { type: "button", onclick: () => turn(1), "aria-label": `Next page of ${name}` }, "Next ›");
  const text = h("span", { role: "status" });
  const element = h("nav", { class: "pager", "aria-label": `Pages of ${name}` }, before, text, after);
  const show = (page, pages, matching) => {
    before.disabled = page <= 1;
    after.disabled = page >= pages;
    before.hidden = after.hidden = pages <= 1;
    text.textContent = pages > 1 ? `page ${number(page)} of ${number(pages)} · ${matching}` : matching;
  };
  return { element, show };
}
