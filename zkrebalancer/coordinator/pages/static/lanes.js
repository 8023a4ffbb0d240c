// Owners over time: one lane per partition, coloured by member; a gap is a time without an owner.

import { h, memberName, now, s, time } from "./dom.js";

const COLOURS = 12;
const MIN_MS = 1000; // shown
const colours = new Map(); // member -> number, in order of first sight, so that colours stay

const colour = (member) => {
  if (!colours.has(member)) colours.set(member, colours.size % COLOURS);
  return `owner-${colours.get(member)}`;
};

export function legend(members) {
  return members.map((member) =>
    h("li", { "data-key": member, "data-member": member, onmouseenter: () => highlight(member), onmouseleave: () => highlight(null) }, h("span", { class: `swatch ${colour(member)}` }), memberName(member)));
}

function highlight(member) {
  for (const bar of document.querySelectorAll(".lanes .bar")) bar.classList.toggle("dim", member !== null && bar.dataset.member !== member);
}

// Draw into `place`. `rangeMs`: what to show of the past, null for all of it; `marks`: times of rebalances.
export function draw(place, owners, rangeMs, marks) {
  const width = place.clientWidth;
  if (!width) return;
  const toMs = now();
  const fromMs = Math.min(Math.max(owners.since_ms, rangeMs === null ? 0 : toMs - rangeMs), toMs - MIN_MS);
  const row = owners.lanes.length > 24 ? 12 : 18;
  const left = Math.min(190, Math.max(84, width * 0.22));
  const top = 22;
  const height = top + owners.lanes.length * row + 4;
  const x = (ms) => left + ((Math.min(Math.max(ms, fromMs), toMs) - fromMs) / (toMs - fromMs)) * (width - left);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Owners of partitions over time; the list of changes below says the same" });
  const ticks = width < 520 ? 2 : 5;
  for (let tick = 0; tick <= ticks; tick += 1) {
    const at = fromMs + ((toMs - fromMs) * tick) / ticks;
    const anchor = tick === 0 ? "start" : tick === ticks ? "end" : "middle";
    svg.append(s("text", { x: x(at), y: 12, class: "tick", "text-anchor": anchor }, time(at)), s("line", { x1: x(at), x2: x(at), y1: 16, y2: height, class: "grid" }));
  }
  for (const mark of marks.filter((at) => at > fromMs)) svg.append(s("line", { x1: x(mark), x2: x(mark), y1: 16, y2: height, class: "mark" }));
  owners.lanes.forEach((lane, position) => {
    const y = top + position * row;
    const name = `${lane.topic} ${lane.partition}`;
    svg.append(s("text", { x: left - 8, y: y + row / 2 + 3.5, class: "lane", "text-anchor": "end" }, s("title", {}, name), short(name, left)));
    const known = x(owners.since_ms);
    svg.append(s("rect", { x: known, y: y + 1.5, width: width - known, height: row - 3, class: "gap" }, s("title", {}, `${name}: no owner`)));
    for (const [from, to, member] of lane.spans) {
      const owner = owners.members[member];
      if ((to ?? toMs) <= fromMs) continue;
      const begin = x(from);
      const bar = s("rect", { x: begin, y: y + 1.5, width: Math.max(1, x(to ?? toMs) - begin), height: row - 3, class: `bar ${colour(owner)}` },
        s("title", {}, `${name}: ${owner}\n${time(from)} – ${to === null ? "now" : time(to)}`));
      bar.dataset.member = owner;
      svg.append(bar);
    }
  });
  place.replaceChildren(svg);
}

// The end of a long name tells more than its begin.
function short(name, left) {
  const fits = Math.floor((left - 10) / 6.2);
  return name.length > fits ? `…${name.slice(-fits + 1)}` : name;
}
