import type { PinStage, Snapshot, Worker } from "./protocol";

/** One line of the worker table: a worker and what it did over the last few seconds. */
export interface WorkerLine {
  worker: Worker;
  /** Batches per second. */
  rate: number;
  /** Microseconds a batch; NaN where no batch was finished. */
  fetch: number;
  collate: number;
  send: number;
  /** Shares of the time: on a processor, ready and waiting for one, at a batch and waiting for something else. */
  processor: number;
  queued: number;
  blocked: number;
  /** Share of the time with a task in hand. */
  busy: number;
}

/** Rates per worker from counters, over a window that slides with the snapshots. */
export class WorkerRates {
  readonly #window: number;
  #past: Snapshot[] = [];

  constructor(window = 5) {
    this.#window = window;
  }

  note(snapshot: Snapshot): void {
    const newest = this.#past[this.#past.length - 1];
    if (newest !== undefined && snapshot.at <= newest.at) {
      if (snapshot.at === newest.at) return;
      this.#past = [];
    }
    this.#past.push(snapshot);
    while (this.#past.length > 2 && snapshot.at - (this.#past[0] as Snapshot).at > this.#window) this.#past.shift();
  }

  lines(): WorkerLine[] {
    const newest = this.#past[this.#past.length - 1];
    return newest === undefined ? [] : newest.workers.map((worker) => this.#line(worker, newest.at));
  }

  /** Share of the time in which the pin stage was at work, and µs a batch there. */
  pin(): { busy: number; us: number } {
    const oldest = this.#past[0];
    const newest = this.#past[this.#past.length - 1];
    if (oldest === undefined || newest === undefined || newest.at <= oldest.at) return { busy: 0, us: Number.NaN };
    const done = difference(newest.pin, oldest.pin);
    return {
      busy: Math.min(1, done.us / 1e6 / (newest.at - oldest.at)),
      us: done.batches > 0 ? done.us / done.batches : Number.NaN,
    };
  }

  #line(worker: Worker, at: number): WorkerLine {
    for (const past of this.#past) {
      const before = past.workers.find((each) => each.pid === worker.pid && each.id === worker.id);
      if (before === undefined || past.at >= at) continue;
      const seconds = at - past.at;
      const batches = worker.batches - before.batches;
      const seen = worker.fetch_us + worker.collate_us + worker.send_us > 0; // not of a torch DataLoader's
      const per = (now: number, then: number) => (batches > 0 && seen ? (now - then) / batches : Number.NaN);
      const active =
        worker.fetch_us - before.fetch_us + worker.collate_us - before.collate_us + worker.send_us - before.send_us;
      const busy = Math.min(1, Math.max(0, active / 1e6 / seconds));
      return {
        worker,
        rate: batches / seconds,
        fetch: per(worker.fetch_us, before.fetch_us),
        collate: per(worker.collate_us, before.collate_us),
        send: per(worker.send_us, before.send_us),
        ...occupation(worker, before, seconds, seen ? busy : Number.NaN),
        busy,
      };
    }
    const nothing = Number.NaN;
    return { worker, rate: nothing, fetch: nothing, collate: nothing, send: nothing, processor: nothing, queued: nothing, blocked: nothing, busy: nothing };
  }
}

/** As `penstock/insight/occupation.py` has it: what is neither of the first two is the rest of the time at batches. */
function occupation(now: Worker, then: Worker, seconds: number, busy: number) {
  const processor = (now.cpu_ms - then.cpu_ms) / 1e3 / seconds;
  const queued = (now.queued_ms - then.queued_ms) / 1e3 / seconds;
  return { processor, queued, blocked: Math.max(0, busy - processor - queued) };
}

function difference(now: PinStage, then: PinStage): { us: number; batches: number } {
  return { us: Math.max(0, now.us - then.us), batches: Math.max(0, now.batches - then.batches) };
}

export type WorkerColumn = "id" | "pid" | "state" | "batch" | "rate" | "fetch" | "collate" | "send" | "processor" | "queued" | "blocked" | "rss";

/** Sort lines by a column; lines without a value come last either way. */
export function sortedLines(lines: readonly WorkerLine[], column: WorkerColumn, descending: boolean): WorkerLine[] {
  const value = (line: WorkerLine): number | string => {
    switch (column) {
      case "rate":
      case "fetch":
      case "collate":
      case "send":
      case "processor":
      case "queued":
      case "blocked":
        return line[column];
      default:
        return line.worker[column];
    }
  };
  const sign = descending ? -1 : 1;
  return [...lines].sort((a, b) => {
    const left = value(a);
    const right = value(b);
    if (typeof left === "string" || typeof right === "string") return sign * String(left).localeCompare(String(right));
    if (Number.isNaN(left)) return Number.isNaN(right) ? a.worker.id - b.worker.id : 1;
    if (Number.isNaN(right)) return -1;
    return sign * (left - right) || a.worker.id - b.worker.id;
  });
}
