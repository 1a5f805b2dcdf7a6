// Answers on their way: sent one after another, kept in the browser until the server has them.
// Each has a ticket; one that is sent twice is one label.

const PATIENCE_MS = 15000;
const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 5000;

export function makeTicket() {
  if (globalThis.crypto?.randomUUID) return crypto.randomUUID(); // only on https and localhost
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Refusal extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

// The server's answer; a Refusal where it says no, a TypeError or AbortError where it cannot be reached.
export async function ask(path, body) {
  const end = new AbortController();
  const timer = setTimeout(() => end.abort(), PATIENCE_MS);
  try {
    const given = { signal: end.signal, credentials: "same-origin", cache: "no-store" };
    if (body) Object.assign(given, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const reply = await fetch(path, given);
    const said = await reply.json().catch(() => ({}));
    if (!reply.ok) throw new Refusal(reply.status, said.error || `The server answers ${reply.status}.`);
    return said;
  } finally {
    clearTimeout(timer);
  }
}

export function isFinal(error) {
  // Anything else may be different in a moment: no network, a busy or restarted server, a new token.
  return error instanceof Refusal && [400, 404, 405, 409, 413, 415, 422].includes(error.status);
}

export class Outbox {
  // `told` is called with {waiting, error} whenever that changes; entries are {path, body}.
  constructor(workspace, told) {
    this.prefix = `rarefish.${workspace}.send.`;
    this.told = told;
    this.error = null;
    this.entries = this.leftovers();
    this.isSending = false;
    this.wake = () => {};
    addEventListener("online", () => this.wake());
    addEventListener("beforeunload", (event) => {
      if (this.entries.some((entry) => !entry.isKept)) event.preventDefault();
    });
  }

  // What an earlier page, or one that was closed, could not send any more.
  leftovers() {
    const keys = Object.keys(localStorageOrNone()).filter((key) => key.startsWith(this.prefix)).sort();
    return keys.flatMap((key) => {
      try {
        return [{ ...JSON.parse(localStorage.getItem(key)), key, isKept: true }];
      } catch {
        return [];
      }
    });
  }

  // Images whose answers the server may not have yet.
  images() {
    return this.entries.map((entry) => entry.body.image).filter((image) => image !== undefined);
  }

  // The server's answer, when it comes; rejects where the server refuses for good.
  send(path, body) {
    return new Promise((resolve, reject) => {
      const key = `${this.prefix}${String(Date.now()).padStart(15, "0")}.${String((this.count = (this.count || 0) + 1)).padStart(6, "0")}`;
      const entry = { path, body, key, resolve, reject, isKept: true };
      try {
        localStorage.setItem(key, JSON.stringify({ path, body }));
      } catch {
        entry.isKept = false; // the page then asks before it is closed
      }
      this.entries.push(entry);
      this.run();
    });
  }

  async run() {
    if (this.isSending) return;
    this.isSending = true;
    let wait = FIRST_WAIT_MS;
    while (this.entries.length) {
      const entry = this.entries[0];
      try {
        const said = await ask(entry.path, entry.body);
        this.done(entry);
        entry.resolve?.(said);
        wait = FIRST_WAIT_MS;
      } catch (error) {
        if (isFinal(error)) {
          this.done(entry);
          (entry.reject || this.told)(entry.reject ? error : { waiting: this.entries.length, error });
          continue;
        }
        this.error = error;
        this.told({ waiting: this.entries.length, error });
        await new Promise((go) => {
          this.wake = go;
          setTimeout(go, wait);
        });
        wait = Math.min(2 * wait, LONGEST_WAIT_MS);
      }
    }
    this.isSending = false;
  }

  done(entry) {
    this.entries.shift();
    try {
      localStorage.removeItem(entry.key);
    } catch {
      // it was never kept
    }
    if (this.error || !this.entries.length) this.told({ waiting: this.entries.length, error: (this.error = null) });
  }
}

function localStorageOrNone() {
  try {
    return localStorage;
  } catch {
    return {};
  }
}

// A value that this browser remembers; null where it cannot.
export function remember(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(`rarefish.${name}`, value);
    return localStorage.getItem(`rarefish.${name}`);
  } catch {
    return value ?? null;
  }
}
