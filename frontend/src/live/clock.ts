/**
 * How old the newest data is, without trusting any two clocks to agree.
 *
 * Sender and receiver clocks differ by an unknown constant; a message's transit adds a delay that is never
 * negative. The smallest difference seen lately is therefore the constant plus the shortest transit, and what a
 * message exceeds it by is how late it came. Two such estimates are chained: loader → backend → browser.
 */
export class Offset {
  readonly #window: number;
  #current = Infinity;
  #next = Infinity;
  #turned = -Infinity;

  /** The estimate forgets within two windows (seconds), so that it follows clocks that drift. */
  constructor(window = 60) {
    this.#window = window;
  }

  note(sent: number, received: number): void {
    if (received - this.#turned > this.#window) {
      this.#current = this.#next;
      this.#next = Infinity;
      this.#turned = received;
    }
    const difference = received - sent;
    this.#next = Math.min(this.#next, difference);
    this.#current = Math.min(this.#current, difference);
  }

  /** A moment of the sender's clock, on the receiver's. */
  toReceiver(sent: number): number {
    return Number.isFinite(this.#current) ? sent + this.#current : sent;
  }
}

/** Seconds of the browser's steady clock, in Unix time: it does not jump when the system's clock is set. */
export function now(): number {
  return (performance.timeOrigin + performance.now()) / 1000;
}

export class DataAge {
  readonly #loader = new Offset();
  readonly #backend: Offset;
  #newest = Number.NaN;

  /** The backend's offset is the same for all loaders; the connection keeps it. */
  constructor(backend: Offset) {
    this.#backend = backend;
  }

  /** A snapshot was taken at one moment and reached the backend at another, each by its own clock. */
  note(snapshotAt: number, frameAt: number): void {
    this.#loader.note(snapshotAt, frameAt);
    this.#newest = snapshotAt;
  }

  /** Backend time on the browser's clock, for ages of things that only the backend dated. */
  fromBackend(at: number): number {
    return this.#backend.toReceiver(at);
  }

  /** Loader time on the browser's clock. */
  fromLoader(at: number): number {
    return this.#backend.toReceiver(this.#loader.toReceiver(at));
  }

  /** The browser's moment on the loader's clock: charts are drawn in loader time. */
  toLoader(moment: number): number {
    if (Number.isNaN(this.#newest)) return moment;
    return moment - (this.fromLoader(this.#newest) - this.#newest);
  }

  /** Seconds since the newest snapshot was taken; NaN before the first. */
  age(moment: number): number {
    return Math.max(0, moment - this.fromLoader(this.#newest));
  }
}
