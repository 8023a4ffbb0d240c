// What a coordinator shows that does not lead, and what a leader shows that is not ready.

import { h, list } from "./dom.js";

const main = document.getElementById("main");

// A coordinator that does not lead knows no group; it points to the one that does.
function elsewhere({ coordinator, leader, unknown }) {
  if (coordinator.leads) return null;
  const faults = coordinator.faults.map((fault) => h("p", { class: "alert" }, fault));
  const where = leader?.http && h("a", { href: `http://${leader.http}${location.pathname}${location.search}`, class: "button" }, `Go to the leader, ${leader.http}`);
  const silent = leader && !leader.http && h("p", {}, "The leader serves no pages; start it with --http.");
  return h("section", { class: "panel center" }, ...about(coordinator, leader, unknown), where, silent, faults);
}

function about({ shards, leads_shards: led }, leader, unknown) {
  const nothingMoves = "Members read on, but nothing is rebalanced until one leads.";
  const isOfGroup = new URLSearchParams(location.search).has("group");
  const [title, text] =
    unknown ? ["The leader is not known", `It is not known here which coordinator leads: ${unknown}.`]
    : shards && !isOfGroup ? ["This coordinator leads no shard", leader ? `One that leads some of the ${shards} shards: ${leader.name}.` : "zkrebalancer shards show names the leaders of all shards."]
    : !leader ? ["No leader", `No coordinator leads${shards ? " the shard of this group" : ""}. ${nothingMoves}`]
    : [led?.length ? "Another coordinator leads this group" : "This coordinator is a standby", `The leader is ${leader.name} (epoch ${leader.epoch}). Only the leader knows ${shards ? "this group" : "the groups"}.`];
  return [h("h1", {}, title), h("p", {}, text)];
}

// Show a document by `show`, below what keeps its leader from being ready; unless this coordinator does not lead.
export function unlessElsewhere(view, show) {
  const faults = h("div", { role: "status" });
  return (document) => {
    const other = elsewhere(document);
    if (other) main.replaceChildren(other);
    else {
      if (!main.contains(view)) main.replaceChildren(faults, view);
      list(faults, document.coordinator.faults, (fault) => fault, (fault) => h("p", { class: "alert" }, fault));
      show(document);
    }
  };
}

// Why a leader does not have a group; null if it has.
export function absence(name, { missing, loading, error }) {
  if (error) return `Group ${name} is not served because of an internal error, and is tried again at growing intervals: ${error}`;
  if (loading !== undefined) return `This coordinator has not read group ${name} yet, if there is one: it has just begun to lead, or has connected again.`;
  if (missing !== undefined) return `There is no group ${name}. It was deleted, or never existed.`;
  return null;
}
