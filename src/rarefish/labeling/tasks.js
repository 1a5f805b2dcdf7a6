// The tasks of the annotator: the one on the screen, the next ones with preloaded images, and those already answered.

import { ask, makeTicket } from "/static/outbox.js";

const AHEAD = 6;
const LOW = 4;
const RENEW_MS = 120000;

export class Tasks {
  // `changed` is called when another image must be shown, `failed` with the error of a request or null.
  constructor({ workspace, who, outbox, size, changed, failed }) {
    Object.assign(this, { workspace, who, outbox, size, changed, failed });
    Object.assign(this, { current: null, ahead: [], behind: [], isAsking: false, isTold: false, hasFailed: false, isOver: false, pictures: new Map() });
    this.timer = setInterval(() => document.hidden || this.fill(true), RENEW_MS);
  }

  close() {
    clearInterval(this.timer);
    this.isOver = true;
  }

  address(image, size = this.size) {
    return `/image/${image}?size=${size}`;
  }

  // Returns whether the server's reply to the last answer is still pending.
  get isWaiting() {
    return !this.isTold || this.outbox.images().length > 0;
  }

  // Requests more tasks if few are left, except for images that are on the screen or being sent.
  async fill(isRenewal = false) {
    if (this.isAsking || this.isOver || (!isRenewal && this.ahead.length >= LOW)) return;
    this.isAsking = true;
    const shown = [this.current, ...this.ahead].filter(Boolean);
    const held = [...new Set([...shown.map((task) => task.image), ...this.outbox.images()])].slice(0, 100);
    const count = Math.max(0, AHEAD - this.ahead.length);
    const answered = this.behind.length;
    const [said, error] = await ask("/api/next", { who: this.who, count, held, workspace: this.workspace }).then((all) => [all, null], (error) => [null, error]);
    Object.assign(this, { isAsking: false, isTold: !error && answered === this.behind.length, hasFailed: Boolean(error) });
    if (this.isOver) return;
    this.failed(error);
    if (said) this.take(said, shown);
    else if (!this.current) this.changed();
  }

  take(said, asked) {
    const kept = new Set(said.kept);
    const lost = new Set(asked.filter((task) => !task.isOwn && !kept.has(task.image)).map((task) => task.image));
    if (asked.length && lost.size) this.ahead = this.ahead.filter((task) => !lost.has(task.image));
    const known = new Set([this.current?.image, ...this.ahead.map((task) => task.image), ...this.outbox.images()]);
    this.ahead.push(...said.tasks.filter((task) => !known.has(task.image)));
    this.ahead.forEach((task) => this.load(task));
    const isLost = this.current && lost.has(this.current.image);
    if (isLost || !this.current) this.next(isLost ? "This image has been assigned to someone else in the meantime." : "");
  }

  load(task) {
    const wanted = [this.address(task.image)];
    if (task.center !== null) wanted.push(this.address(task.center, 320));
    for (const address of wanted.filter((one) => !this.pictures.has(one))) {
      const picture = new Image();
      picture.src = address;
      this.pictures.set(address, picture);
    }
    for (const old of [...this.pictures.keys()].slice(0, Math.max(0, this.pictures.size - 60))) this.pictures.delete(old);
  }

  next(said = "") {
    this.current = this.ahead.shift() || null;
    this.changed(said);
    if (this.current) this.fill();
  }

  // Shows this task now and the current one after it.
  show(task, said = "") {
    if (this.current && this.current.image !== task.image) this.ahead.unshift(this.current);
    this.ahead = this.ahead.filter((other) => other.image !== task.image);
    this.current = task;
    this.load(task);
    this.changed(said);
  }

  // Sends the answer and moves on; the promise resolves when the server has it.
  answer(kind, number, seconds, said) {
    const task = this.current;
    const body = { image: task.image, who: this.who, answer: kind, class: number, ticket: makeTicket(), seconds };
    const sent = this.outbox.send("/api/answer", { ...body, workspace: this.workspace });
    this.behind.push(task);
    this.isTold = false;
    this.next(said);
    return sent;
  }

  // Undoes the last answer: immediately on the screen, then on the server, whose reply is final.
  async undo() {
    const last = this.behind.pop();
    if (last) this.show({ ...last, isOwn: true }, "Taken back.");
    const said = await this.outbox.send("/api/undo", { who: this.who, ticket: makeTicket(), workspace: this.workspace });
    if (!said.task && !last) return "There is nothing to undo.";
    if (said.task && said.task.image !== last?.image) this.show({ ...said.task, isOwn: true }, "Taken back.");
    return "";
  }
}
