// All groups: sums, search, states, pages; and the last rebalances of all.

import { cell, chip, fact, groupLink, h, list, memberNames, number, numeric, pager, plural, since, table, took } from "./dom.js";
import { unlessElsewhere } from "./elsewhere.js";
import { Feed } from "./feed.js";

const TYPING_MS = 200;

export function showGroups(fields) {
  const wanted = { search: fields.get("search") ?? "", state: fields.get("state") ?? "", page: Number(fields.get("page") ?? 1) };
  let page = wanted.page;
  let typing;

  const sums = h("dl", { class: "facts" });
  const search = h("input", { type: "search", id: "search", value: wanted.search, placeholder: "Name contains …", autocomplete: "off", spellcheck: "false", "aria-keyshortcuts": "/" });
  const states = h("div", { class: "chips", role: "group", "aria-label": "State" });
  const groups = table("Groups", ["Group", "State", "For", "#Members", "#Partitions", "#Without owner", "#Pending commands", "#Generation"]);
  const none = h("p", { class: "empty", hidden: true }, "No group matches.");
  const pages = pager("groups", (by) => change({ page: page + by }));
  const ended = table("Last rebalances", ["Ended", "Group", "Why", "End", "#Moved", "Took", "Longest pause", "Late"]);
  const quiet = h("p", { class: "empty" }, "None under this leader yet.");
  const notes = h("div", { class: "remarks" });
  const broken = h("ul", { class: "obstacles" });
  const out = h("section", { class: "panel warn", "aria-labelledby": "out", hidden: true }, h("h2", { id: "out" }, "Not served"), broken);
  const view = h("div", {},
    h("h1", { class: "hidden" }, "Groups"), sums, notes, out,
    h("section", { class: "panel", "aria-labelledby": "groups" },
      h("div", { class: "bar" }, h("h2", { id: "groups" }, "Groups"), h("label", { class: "hidden", for: "search" }, "Search groups"), search, states),
      groups.element, none, pages.element),
    h("section", { class: "panel", "aria-labelledby": "ended" }, h("h2", { id: "ended" }, "Last rebalances"), ended.element, quiet));

  const feed = new Feed("groups", unlessElsewhere(view, show));

  function change(differing) {
    Object.assign(wanted, { page: 1 }, differing);
    const shown = Object.fromEntries(Object.entries(wanted).filter(([name, value]) => value && !(name === "page" && value === 1)));
    history.replaceState(null, "", `?${new URLSearchParams(shown)}`);
    feed.ask(wanted);
  }

  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => change({ search: search.value }), TYPING_MS);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target instanceof HTMLInputElement) return;
    event.preventDefault();
    search.focus();
  });

  function show(document) {
    const { totals } = document;
    page = document.page;
    list(notes, remarks(document), (text) => text, (text) => h("p", { class: "note" }, text));
    out.hidden = document.out_count === 0;
    const more = document.out_count - document.out.length;
    list(broken, [...document.out, ...(more > 0 ? [{ more }] : [])], (one) => one.group ?? "more", brokenLine);
    sums.hidden = document.interval_s === null;
    const figures = [
      ["Groups", totals.groups], ["Members", totals.members], ["Partitions", totals.partitions],
      ["Without owner", totals.unowned, totals.unowned ? "bad" : ""], ["Pending commands", totals.pending_commands, totals.pending_commands ? "busy" : ""],
    ];
    list(sums, figures, ([label]) => label, ([label, value, kind]) => fact(label, number(value), kind));
    const known = [["", totals.groups], ...Object.entries(totals.states)];
    if (wanted.state && !totals.states[wanted.state]) known.push([wanted.state, 0]);
    list(states, known.map(([state, count]) => [state, count, state === wanted.state]), ([state]) => state || "all", ([state, count, isOn]) =>
      h("button", { type: "button", class: `chip ${state || "all"}`, "aria-pressed": String(isOn), "data-focus": "chip", onclick: () => change({ state }) }, `${state || "all"} ${number(count)}`));
    list(groups.body, document.groups, (group) => group.group, line);
    none.hidden = document.groups.length > 0 || document.interval_s === null;
    none.textContent = totals.groups ? "No group matches." : "This coordinator has read no group.";
    pages.show(document.page, document.pages, plural(document.matching, "group"));
    list(ended.body, document.ended.slice(0, 15), (one) => `${one.group} ${one.generation} ${one.at_ms}`, endedLine);
    quiet.hidden = document.ended.length > 0;
  }

  feed.ask(wanted);
}

// What the figures do not say by themselves.
function remarks({ coordinator: { shards, leads_shards: led }, interval_s: interval, unread }) {
  return [
    interval === null && "The groups are being counted.",
    interval > 2 && `There are so many groups, or so much else to do, that they are counted every ${Math.ceil(interval)} s only.`,
    unread > 0 && `Still to be read: ${plural(unread, "group")}. They are missing here, or are shown as they were before the connection to ZooKeeper broke.`,
    shards > led?.length && `Only groups of the ${led.length} of ${shards} shards that this coordinator leads. The page of any other group links to its leader.`,
  ].filter(Boolean);
}

function brokenLine({ group, problem, more }) {
  if (more) return h("li", {}, `${number(more)} more`);
  return h("li", {}, chip("quarantined", "late"), " ", groupLink(group), ` is tried again at growing intervals after an internal error: ${problem}`);
}

function line(group) {
  const isBad = group.unowned > 0;
  return h("tr", { class: group.problem ? "problem" : null },
    h("th", { scope: "row" }, groupLink(group.group), group.problem && h("p", { class: "why" }, group.problem)),
    cell("State", chip(group.state)), cell("For", since(group.since_ms)),
    numeric("Members", group.members), numeric("Partitions", group.partitions),
    h("td", { "data-label": "Without owner", class: `number ${isBad ? "bad" : ""}` }, h("span", { class: "value" }, number(group.unowned))),
    numeric("Pending commands", group.pending_commands), numeric("Generation", group.generation));
}

function endedLine(one) {
  return h("tr", {},
    cell("Ended", since(one.at_ms, " ago")), h("th", { scope: "row" }, groupLink(one.group)), cell("Why", one.cause),
    cell("End", chip(one.outcome)), numeric("Moved", one.moved), took("Took", one.settled_ms),
    took("Longest pause", one.moved ? one.pause_ms_max : null), cell("Late", one.late.length ? h("span", { class: "bad" }, memberNames(one.late)) : "–"));
}
