// Documents of the coordinator: by server-sent events; while it has too many readers, by asking every five seconds.

import { now, setClock, time } from "./dom.js";

const POLL_MS = 5000;
const role = document.getElementById("role");
const live = document.getElementById("live");

export class Feed {
  constructor(kind, show) {
    this.kind = kind;
    this.show = show;
  }

  // Follow the document with these fields from now on.
  ask(fields) {
    this.stop();
    this.fields = fields;
    const query = new URLSearchParams(fields);
    const source = (this.source = new EventSource(`/page/live/${this.kind}?${query}`));
    source.addEventListener("time", (event) => setClock(Number(event.data)));
    source.addEventListener("open", () => state("live", "live"));
    source.addEventListener("message", (event) => this.take(JSON.parse(event.data)));
    source.addEventListener("end", () => source.close());
    source.addEventListener("error", () => {
      if (this.source !== source) return;
      if (source.readyState === EventSource.CLOSED) this.poll(query);
      else state("lost", `no answer since ${time(now())}`);
    });
  }

  stop() {
    this.source?.close();
    clearTimeout(this.timer);
    this.source = null;
  }

  async poll(query) {
    const source = this.source;
    try {
      const answer = await fetch(`/page/${this.kind}?${query}`);
      const document = await answer.json();
      if (this.source !== source) return;
      setClock(Date.parse(answer.headers.get("date")) || Date.now());
      state("live", "every 5 s");
      this.take(document);
    } catch {
      state("lost", `no answer since ${time(now())}`);
    }
    if (this.source === source) this.timer = setTimeout(() => this.ask(this.fields), POLL_MS); // a place may be free now
  }

  take(document) {
    showRole(document);
    this.show(document);
  }
}

function state(kind, text) {
  if (live.dataset.kind === kind && kind === "lost") return; // the first time is of interest
  live.dataset.kind = kind;
  live.textContent = text;
}

function showRole({ coordinator }) {
  const what = coordinator.leads ? "leads" : coordinator.state === "standby" ? "standby" : coordinator.state;
  role.textContent = `coordinator ${coordinator.broker_id} on ${coordinator.host} · ${what}${coordinator.leads ? ` · epoch ${coordinator.epoch}` : ""}${coordinator.shards ? ` · ${coordinator.leads_shards.length} of ${coordinator.shards} shards` : ""}`;
}
