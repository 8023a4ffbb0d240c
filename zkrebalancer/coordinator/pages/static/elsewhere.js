// What a coordinator shows that does not lead.

import { h } from "./dom.js";

const main = document.getElementById("main");

// A coordinator that does not lead knows no group; it points to the one that does.
function elsewhere({ coordinator, leader }) {
  if (coordinator.leads) return null;
  const faults = coordinator.faults.map((fault) => h("p", { class: "alert" }, fault));
  const where = leader?.http && h("a", { href: `http://${leader.http}${location.pathname}${location.search}`, class: "button" }, `Go to the leader, ${leader.http}`);
  const nobody = coordinator.leads_shards?.length ? "No coordinator leads the shard of this group." : "No coordinator leads.";
  const text = leader
    ? `Coordinator ${leader.brokerid} on ${leader.host} leads (epoch ${leader.epoch}). Only the leader knows the groups.`
    : `${nobody} Members read on, but nothing is rebalanced until one leads.`;
  const silent = leader && !leader.http && h("p", {}, "The leader serves no pages; start it with --http.");
  return h("section", { class: "panel center" }, h("h1", {}, !leader ? "No leader" : coordinator.leads_shards?.length ? "Another coordinator leads this group" : "This coordinator is a standby"), h("p", {}, text), where, silent, faults);
}

// Show a document by `show`, unless this coordinator does not lead.
export function unlessElsewhere(view, show) {
  return (document) => {
    const other = elsewhere(document);
    if (other) main.replaceChildren(other);
    else {
      if (!main.contains(view)) main.replaceChildren(view);
      show(document);
    }
  };
}
