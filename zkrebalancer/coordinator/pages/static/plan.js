// What the next rebalance would move, computed when asked for; nothing is carried out.

import { cell, h, memberName, now, number, plural, table, when } from "./dom.js";
import { absence } from "./elsewhere.js";
import { once } from "./feed.js";

const WITHIN_MS = 120000;

export function planPanel(name) {
  const ask = h("button", { type: "button", class: "button" }, "Show the plan");
  const answer = h("div", { role: "status" });
  ask.addEventListener("click", async () => {
    ask.disabled = true;
    answer.replaceChildren(h("p", { class: "note" }, "planning …"));
    try {
      const document = await once("plan", { name }, WITHIN_MS);
      answer.replaceChildren(...(document.plan ? shown(document.plan) : [h("p", {}, absence(name, document) ?? "This coordinator does not lead the group now.")]));
    } catch (error) {
      answer.replaceChildren(h("p", { class: "alert" }, `No plan: ${error.message}.`));
    }
    ask.disabled = false;
    ask.textContent = "Plan again";
  });
  return h("section", { class: "panel", "aria-labelledby": "plan" },
    h("div", { class: "bar" }, h("h2", { id: "plan" }, "If it was rebalanced now"), ask),
    h("p", { class: "note" }, "As zkrebalancer groups plan: only a preview; nothing moves."), answer);
}

function shown(plan) {
  if (plan.error) return [h("p", { class: "alert" }, plan.error)];
  const verdict = h("p", {}, h("strong", {}, plan.move_count ? `${plural(plan.move_count, "partition")} would move` : "Nothing would move"),
    `, ${number(plan.unassigned)} would have no owner. Strategy ${plan.strategy}, generation ${plan.generation}, as of `, when(now()), ".");
  const notes = plan.notes.map((note) => h("p", { class: "note" }, note));
  if (!plan.move_count) return [verdict, ...notes];
  const moves = table("Moves", ["Partition", "From", "To"]);
  moves.body.append(...plan.moves.map((move) => h("tr", {}, h("th", { scope: "row" }, `${move.topic} ${move.partition}`), cell("From", move.from ? memberName(move.from) : "–"), cell("To", move.to ? memberName(move.to) : "–"))));
  const more = plan.move_count - plan.moves.length;
  const shares = table("Shares", ["Member", "#Now", "#After"]);
  shares.body.append(...plan.members.map((one) => h("tr", { class: one.before === one.after ? null : "changed" },
    h("th", { scope: "row" }, memberName(one.member)), cell("Now", number(one.before)), cell("After", number(one.after), one.after === one.before ? "" : ` (${one.after > one.before ? "+" : ""}${one.after - one.before})`))));
  const rest = plan.member_count - plan.members.length;
  return [verdict, ...notes, h("div", { class: "pair" },
    h("div", {}, moves.element, more > 0 ? h("p", { class: "note" }, `and ${number(more)} more; zkrebalancer groups plan --json lists all`) : null),
    h("div", {}, shares.element, rest > 0 ? h("p", { class: "note" }, `and ${plural(rest, "member")} more`) : null))];
}
