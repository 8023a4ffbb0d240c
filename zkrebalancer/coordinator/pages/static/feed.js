// Documents of the coordinator: by server-sent events; while it has too many readers, by asking every five seconds.

import { now, setClock, stopClock, time } from "./dom.js";

const POLL_MS = 5000;
const GAP_MS = 1900; // a stream that has ended in time is followed by the next one after 2 s
const SILENCE_MS = 6000; // then the page says that it is old: the coordinator says every second that it is there
const GIVE_UP_MS = 20000; // then the coordinator is asked anew
const role = document.getElementById("role");
const live = document.getElementById("live");

export class Feed {
  constructor(kind, show) {
    this.kind = kind;
    this.show = show;
    this.askedMs = Date.now();
    this.heardMs = 0; // when something was known last
    setInterval(() => this.watch(), 1000);
    // A browser keeps pages that were left, to go back to them. With their streams, six would take all of its connections.
    addEventListener("pagehide", () => this.stop());
    addEventListener("pageshow", (event) => event.persisted && this.ask(this.fields));
  }

  // Follow the document with these fields from now on.
  ask(fields) {
    this.stop();
    this.fields = fields;
    this.askedMs = Date.now();
    const query = new URLSearchParams(fields);
    const source = (this.source = new EventSource(`/page/live/${this.kind}?${query}`));
    source.addEventListener("time", (event) => setClock(Number(event.data)));
    source.addEventListener("message", (event) => this.take(JSON.parse(event.data), "live"));
    source.addEventListener("beat", () => this.heard("live"));
    source.addEventListener("error", () => {
      if (this.source !== source) return;
      if (source.readyState === EventSource.CLOSED) this.poll(query);
      else if (Date.now() > this.heardMs + GAP_MS) this.lose("no answer");
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
      if (!answer.ok) throw new Error(answer.status);
      const document = await answer.json();
      if (this.source !== source) return;
      setClock(Date.parse(answer.headers.get("date")) || Date.now());
      this.take(document, "updated every 5 s");
    } catch {
      if (this.source === source) this.lose("no answer");
    }
    if (this.source === source) this.timer = setTimeout(() => this.ask(this.fields), POLL_MS); // a place may be free now
  }

  take(document, how) {
    stopClock(null);
    try {
      showRole(document);
      this.show(document);
      this.cannotShow = false;
    } catch (error) {
      this.cannotShow = true; // such as the answer of a newer version, after an upgrade
      this.lose("load this page anew: it cannot show what has come");
      console.error(error);
    }
    this.heard(how);
  }

  heard(how) {
    if (this.cannotShow) return;
    this.heardMs = Date.now();
    stopClock(null);
    state("live", how);
  }

  // Let the page stay as it was when something was known last, and say so.
  lose(why) {
    if (this.heardMs) stopClock(this.heardMs);
    state("lost", this.heardMs ? `${why} since ${time(now())}` : why);
  }

  watch() {
    const silentMs = Date.now() - Math.max(this.heardMs, this.askedMs);
    if (this.cannotShow || silentMs <= SILENCE_MS) return;
    this.lose("no answer");
    if (silentMs > GIVE_UP_MS) this.ask(this.fields);
  }
}

// Return a document that takes long to make. The answer is a stream, as no other one may take that long.
export async function once(kind, fields, withinMs) {
  const answer = await fetch(`/page/live/${kind}?${new URLSearchParams(fields)}`, { signal: AbortSignal.timeout(withinMs) });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `HTTP ${answer.status}`);
  const found = (await answer.text()).split("\n\n").find((event) => event.startsWith("data: "));
  if (!found) throw new Error("the coordinator has ended the connection");
  return JSON.parse(found.slice("data: ".length));
}

function state(kind, text) {
  if (live.textContent === text) return; // which would be read aloud again
  live.dataset.kind = kind;
  live.textContent = text;
}

function showRole({ coordinator }) {
  const what = coordinator.leads ? `leads · epoch ${coordinator.epoch}` : coordinator.state;
  const shards = coordinator.shards ? ` · ${coordinator.leads_shards.length} of ${coordinator.shards} shards` : "";
  role.textContent = `coordinator ${coordinator.broker_id} on ${coordinator.host} · ${what}${shards}`;
}
