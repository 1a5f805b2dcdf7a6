// The queue of answers: sent one after another and kept in the browser until the server confirms them.
// Each answer has a ticket, so that one sent twice becomes a single label.

const PATIENCE_MS = 15000;
const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 5000;

export function makeTicket() {
  if (globalThis.crypto?.randomUUID) return crypto.randomUUID(); // available only on https and localhost
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// An error reply. `isOurs` says whether it came from the server of this workspace.
export class Refusal extends Error {
  constructor(status, sentence, isOurs = false) {
    super(sentence);
    Object.assign(this, { status, isOurs });
  }
}

let home = null; // the workspace of the first reply; this page belongs to it

// Returns the server's reply. Throws a Refusal if the server returns an error or if the reply is not from the server of
// this workspace, and a TypeError or AbortError if there is no reply.
export async function ask(path, body) {
  const end = new AbortController();
  const timer = setTimeout(() => end.abort(), PATIENCE_MS);
  try {
    const given = { signal: end.signal, credentials: "same-origin", cache: "no-store", redirect: "manual" };
    if (body) Object.assign(given, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const reply = await fetch(path, given);
    const said = await reply.json().catch(() => null);
    const workspace = said?.workspace;
    if (typeof workspace !== "string") throw unconfirmed(reply.status);
    if (workspace !== (home ?? workspace)) throw new Refusal(reply.status, "The server at this address belongs to another workspace. Restart the server of this workspace, or reload the page to label the other one.");
    if (!reply.ok) throw new Refusal(reply.status, said.error || `The server replied with status ${reply.status}.`, true);
    home = workspace;
    return said;
  } finally {
    clearTimeout(timer);
  }
}

function unconfirmed(status) {
  const what = status ? `with status ${status}` : "with a redirect";
  return new Refusal(status, `The request was not confirmed by this workspace’s server: something else at this address replied ${what}. Restart the server, or log in to the proxy in front of it.`);
}

// Returns whether the reply confirms this answer or undo; for an answer, it must contain the id of the label.
function isConfirmed(said, { path, body }) {
  return said.ticket === body.ticket && (path !== "/api/answer" || Number.isInteger(said.label));
}

// Returns whether a retry is useless, which only the server of this workspace can say. Any other failure may be
// temporary: no network, a busy or restarted server, a new token, a login page in between.
export function isFinal(error) {
  return error instanceof Refusal && error.isOurs && [400, 404, 405, 409, 413, 415, 422].includes(error.status);
}

export class Outbox {
  // `told` is called with {waiting, error} whenever these change; entries are {path, body}. A personal link can only
  // send the answers of its owner, `who`; answers of other people stay in the browser until their link is opened.
  constructor(workspace, told, who = null) {
    this.who = who;
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

  // Loads the entries that an earlier page could not send before it was closed.
  leftovers() {
    const keys = Object.keys(localStorageOrNone()).filter((key) => key.startsWith(this.prefix)).sort();
    return keys.flatMap((key) => {
      try {
        const entry = { ...JSON.parse(localStorage.getItem(key)), key, isKept: true };
        return this.who === null || entry.body.who === this.who ? [entry] : [];
      } catch {
        return [];
      }
    });
  }

  // Returns the images whose answers the server may not have received yet.
  images() {
    return this.entries.map((entry) => entry.body.image).filter((image) => image !== undefined);
  }

  // Resolves to the server's reply; rejects if the server permanently refuses the entry.
  send(path, body) {
    return new Promise((resolve, reject) => {
      const key = `${this.prefix}${String(Date.now()).padStart(15, "0")}.${String((this.count = (this.count || 0) + 1)).padStart(6, "0")}`;
      const entry = { path, body, key, resolve, reject, isKept: true };
      try {
        localStorage.setItem(key, JSON.stringify({ path, body }));
      } catch {
        entry.isKept = false; // the page then asks for confirmation before it is closed
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
        if (!isConfirmed(said, entry)) throw unconfirmed(200);
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
      // it was never stored
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

// Stores a value, if given, and returns the value stored in this browser; null if there is none.
export function remember(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(`rarefish.${name}`, value);
    return localStorage.getItem(`rarefish.${name}`);
  } catch {
    return value ?? null;
  }
}
