// One group: what it does now, owners over time, rebalances, members, the plan of the next rebalance, settings.

import { cell, chip, duration, fact, h, list, memberName, memberNames, number, numeric, pager, plural, shortName, since, table, took, when } from "./dom.js";
import { absence, unlessElsewhere } from "./elsewhere.js";
import { Feed } from "./feed.js";
import { draw, legend } from "./lanes.js";
import { planPanel } from "./plan.js";

const TYPING_MS = 200;
const RANGES = [["5 min", 5], ["30 min", 30], ["3 h", 180], ["all", null]];
const PHASES = ["wait", "plan", "stop", "start"];

export function showGroup(name, fields) {
  document.title = `${name} · zkrebalancer`;
  const wanted = { name, topic: fields.get("topic") ?? "", lanes: 1, member: fields.get("member") ?? "", members: 1 };
  let shown = null;
  let range = RANGES[1];

  const heading = h("div", { class: "heading" });
  const facts = h("dl", { class: "facts" });
  const obstacles = h("ul", { class: "obstacles" });
  const stuck = h("section", { class: "panel warn", "aria-labelledby": "stuck", hidden: true }, h("h2", { id: "stuck" }, "Why it waits"), obstacles);
  const levels = h("ul", { class: "plain note", "aria-label": "Service levels", hidden: true });
  const current = h("p", { class: "current", hidden: true });

  const topic = filter("topic", "Topic contains …", wanted.topic, (value) => change({ topic: value, lanes: 1 }));
  const ranges = h("div", { class: "chips", role: "group", "aria-label": "Time to show" });
  const picture = h("div", { class: "lanes" });
  const names = h("ul", { class: "legend" });
  const lanePages = pager("partitions", (by) => change({ lanes: shown.owners.page + by }));
  const recorded = h("p", { class: "note" });
  const changes = table("Last changes of owners", ["Seen", "Member", "Got", "Gave up"]);
  const noChange = h("p", { class: "empty" }, "No partition has changed its owner since then.");
  const owners = panel("owners", "Owners over time", [topic, ranges], recorded, picture, names, lanePages.element,
    h("details", {}, h("summary", {}, "The last changes as a list"), changes.element, noChange));

  const past = table("Rebalances", ["Requested", "#Generation", "Why", "Phases", "Took", "Longest pause", "Moved", "End"]);
  const noPast = h("p", { class: "empty" }, "None is recorded.");
  const key = h("ul", { class: "legend" }, PHASES.map((phase) => h("li", {}, h("span", { class: `swatch phase-${phase}` }), phase)));
  const rebalances = panel("rebalances", "Rebalances", [key], past.element, noPast);

  const member = filter("member", "Member contains …", wanted.member, (value) => change({ member: value, members: 1 }));
  const members = table("Members", ["Member", "State", "Host", "Reads", "#Partitions", "Owns", "Has to answer"]);
  const memberPages = pager("members", (by) => change({ members: shown.roster.page + by }));
  const roster = panel("members", "Members", [member], members.element, memberPages.element);

  const settings = h("dl", { class: "settings" });
  const settingsPanel = h("details", { class: "panel" }, h("summary", {}, "Settings"), settings);
  const plan = planPanel(name);
  const view = h("div", {}, heading, facts, levels, stuck, current, owners, rebalances, roster, plan, settingsPanel);

  const feed = new Feed("group", unlessElsewhere(view, show));

  function change(differing) {
    Object.assign(wanted, differing);
    const kept = { group: name, ...(wanted.topic && { topic: wanted.topic }), ...(wanted.member && { member: wanted.member }) };
    history.replaceState(null, "", `?${new URLSearchParams(kept)}`);
    feed.ask(wanted);
  }

  function show(found) {
    const why = absence(name, found);
    if (why !== null) {
      list(heading, [why], () => "absent", () => h("div", {}, crumbs(name), h("p", { class: "empty" }, why)));
      for (const part of view.children) part.hidden = part !== heading;
      return;
    }
    shown = found;
    for (const part of [rebalances, plan]) part.hidden = false;
    for (const part of [facts, owners, roster, settingsPanel]) part.hidden = !found.is_read;
    list(heading, [[found.state, found.since_ms, found.settings.frozen]], () => "heading", ([state, sinceMs, isFrozen]) =>
      h("div", {}, crumbs(name), h("h1", {}, name, " ", chip(state), isFrozen && state !== "frozen" ? chip("frozen") : null, " ", h("small", {}, "for ", since(sinceMs)))));
    list(facts, figures(found), ([label]) => label, ([label, value, kind]) => fact(label, value, kind));
    levels.hidden = found.levels.length === 0;
    list(levels, found.levels, (line) => line, (line) => h("li", {}, line));
    const reasons = [...of("loading", found.reading), ...found.obstacles, ...of("unreadable", found.problems)];
    stuck.hidden = reasons.length === 0;
    list(obstacles, reasons, (one) => one.text, obstacleLine);
    showPlanned(found.planned);
    showOwners();
    const longest = Math.max(1, ...found.history.map((one) => one.settled_ms));
    list(past.body, found.history.map((one) => [one, longest]), ([one]) => `${one.epoch} ${one.id}`, pastLine);
    past.element.hidden = found.history.length === 0;
    noPast.hidden = found.history.length > 0;
    noPast.textContent = found.problems.length ? "None can be read." : "None is recorded.";
    list(members.body, found.roster.members, (one) => one.member, memberLine);
    memberPages.show(found.roster.page, found.roster.pages, plural(found.roster.matching, "member"));
    list(settings, [...lastChange(found.last_change), ...Object.entries(found.settings)], ([label]) => label, ([label, value]) => fact(label, setting(label, value)));
  }

  function showPlanned(planned) {
    current.hidden = planned === null;
    if (planned === null) return;
    current.replaceChildren(chip("moving"), ` Generation ${planned.generation}, because of ${planned.cause}: ${plural(planned.moved, "partition")} of ${number(planned.partitions)} move, ${planned.mode}, since `, since(planned.at_ms), ".");
  }

  function showOwners() {
    const { owners: found, changes: last, history: ended } = shown;
    draw(picture, found, range[1] === null ? null : range[1] * 60000, ended.map((one) => one.requested_at_ms));
    names.replaceChildren(...legend(found.members));
    lanePages.show(found.page, found.pages, plural(found.matching, "partition"));
    list(ranges, RANGES.map((one) => [...one, one === range]), ([label]) => label, ([label, minutes, isOn]) =>
      h("button", { type: "button", class: "chip", "aria-pressed": String(isOn), "data-focus": "range", onclick: () => { range = RANGES.find((one) => one[1] === minutes); showOwners(); } }, label));
    list(recorded, [found.since_ms], () => "since", (at) => h("span", {}, "Known since ", when(at), ": this leader read the group then, or keeps no older changes. Dashed lines: rebalances were requested."));
    list(changes.body, last, (one) => `${one.at_ms} ${one.member}`, changeLine);
    changes.element.hidden = last.length === 0;
    noChange.hidden = last.length > 0;
  }

  const again = () => { if (shown && view.isConnected) draw(picture, shown.owners, range[1] === null ? null : range[1] * 60000, shown.history.map((one) => one.requested_at_ms)); };
  new ResizeObserver(again).observe(picture);
  setInterval(again, 5000); // time goes on

  feed.ask(wanted);
}

function filter(name, placeholder, value, change) {
  let typing;
  const input = h("input", { type: "search", "aria-label": placeholder.replace(" …", ""), placeholder, value, autocomplete: "off", spellcheck: "false", name });
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => change(input.value), TYPING_MS);
  });
  return input;
}

function panel(id, title, tools, ...content) {
  return h("section", { class: "panel", "aria-labelledby": id }, h("div", { class: "bar" }, h("h2", { id }, title), tools), content);
}

const crumbs = (name) => h("nav", { class: "crumbs", "aria-label": "Place" }, h("a", { href: "/" }, "Groups"), " / ", name);

function figures(found) {
  return [
    ["Members", number(found.members)], ["Partitions", number(found.partitions)],
    ["Without owner", number(found.unowned), found.unowned ? "bad" : ""],
    ["Pending commands", number(found.pending_commands), found.pending_commands ? "busy" : ""],
    ["Generation", number(found.generation)], ["Strategy", found.settings.strategy, "text"], ["Mode", found.settings.mode, "text"],
  ];
}

const lastChange = (one) => (one ? [["last change", one]] : []);

const setting = (label, value) => (label === "last change" ? [when(value.at_ms), `, ${value.by}: ${value.what}`] : typeof value === "string" ? value : JSON.stringify(value));

const of = (kind, texts) => texts.map((text) => ({ kind, text }));

const UTC = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00/; // other times are those of this browser

function obstacleLine(one) {
  const parts = one.text.split(UTC);
  return h("li", {}, chip(one.kind, "late"), " ", one.until_ms && parts.length === 2 ? [parts[0], when(one.until_ms), parts[1]] : one.text);
}

function pastLine([one, longest]) {
  const more = one.reason_count - one.reasons.length;
  const reasons = one.reasons.map((reason) => h("li", {}, reason.kind, reason.subject ? h("span", { class: "subject", title: reason.subject }, ` ${shortName(reason.subject)}`) : null, reason.by ? `, by ${reason.by}` : null));
  if (more > 0) reasons.push(h("li", {}, `${number(more)} more`));
  const late = one.late_count ? h("p", { class: "bad" }, "late: ", memberNames(one.late), one.late_count > one.late.length ? `, ${one.late_count - one.late.length} more` : null) : null;
  const slowest = one.slowest ? h("p", { class: "note" }, "slowest: ", memberName(one.slowest.member), `, ${duration(one.slowest.ms)}`) : null;
  return h("tr", {},
    h("td", { "data-label": "Requested" }, when(one.requested_at_ms)),
    numeric("Generation", one.generation), cell("Why", h("ul", { class: "plain" }, reasons)), cell("Phases", phases(one, longest)),
    took("Took", one.settled_ms), took("Longest pause", one.moved ? one.pause_ms_max : null),
    h("td", { "data-label": "Moved", class: "took" }, `${number(one.moved)} of ${number(one.partitions)}`), cell("End", chip(one.outcome), late, slowest));
}

// Stops and starts overlap, so each phase has a line of its own below the others.
function phases(one, longest) {
  const known = PHASES.filter((phase) => one.phases_ms[phase] !== null);
  const text = known.map((phase) => `${phase} ${duration(one.phases_ms[phase])}`).join(", ");
  const bars = known.map((phase) => {
    const bar = h("span", { class: `phase phase-${phase}` });
    bar.style.width = `${Math.max(1, (one.phases_ms[phase] / longest) * 100)}%`;
    return bar;
  });
  return h("div", { class: "phases", title: text }, h("div", { class: "bars", "aria-hidden": "true" }, bars), h("span", { class: "note" }, text));
}

function memberLine(one) {
  const details = [one.instance && `instance ${one.instance}`, one.rack && `rack ${one.rack}`, one.capacity !== null && one.capacity !== 1 && `capacity ${one.capacity}`].filter(Boolean);
  const pending = one.pending.map((command) => h("li", {}, command.option, command.count === null ? ", all" : `, ${plural(command.count, "partition")}`, command.sent_at_ms ? ", since " : "", command.sent_at_ms ? since(command.sent_at_ms) : null));
  return h("tr", {},
    h("th", { scope: "row" }, one.member, details.length ? h("p", { class: "note" }, details.join(", ")) : null),
    cell("State", chip(one.state)), cell("Host", one.host), cell("Reads", one.pattern && one.pattern !== "static" ? `${one.pattern} ` : "", one.subscription || "–"),
    cell("Partitions", one.count === null ? "?" : number(one.count)), cell("Owns", one.owns || "–"),
    cell("Has to answer", pending.length ? h("ul", { class: "plain busy" }, pending) : "–"));
}

function changeLine(one) {
  return h("tr", {}, cell("Seen", when(one.at_ms)), h("th", { scope: "row" }, memberName(one.member)), cell("Got", one.gained || "–"), cell("Gave up", one.lost || "–"));
}
