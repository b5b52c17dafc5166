import type { Frame, Worker, WorkerRates } from "./protocol";

/** One line of the worker table: a worker and what it did over the last few seconds; NaN where that is not known. */
export interface WorkerLine {
  worker: Worker;
  /** Batches per second. */
  rate: number;
  /** Microseconds a batch. */
  fetch: number;
  collate: number;
  send: number;
  /** Shares of the time: on a processor, ready and waiting for one, at a batch and waiting for something else. */
  processor: number;
  queued: number;
  blocked: number;
  /** Bytes of batches per second. */
  bytes: number;
  /** The machine that it runs on; empty: training's own. */
  machine: string;
}

/** A frame's workers, each with its rates. */
export function linesOf({ snapshot, workers }: Frame): WorkerLine[] {
  const machines = new Map(snapshot.machines?.flatMap(({ name, workers }) => workers.map((number) => [number, name] as const)));
  return snapshot.workers.map((worker, place) => {
    const did = (field: keyof WorkerRates) => workers[place]?.[field] ?? Number.NaN;
    return {
      worker,
      rate: did("batches"),
      fetch: did("fetch_us"),
      collate: did("collate_us"),
      send: did("send_us"),
      processor: did("processor"),
      queued: did("queued"),
      blocked: did("blocked"),
      bytes: did("bytes"),
      machine: machines.get(worker.id) ?? "",
    };
  });
}

export type WorkerColumn = "id" | "pid" | "state" | "batch" | "rate" | "fetch" | "collate" | "send" | "processor" | "queued" | "blocked" | "bytes" | "machine" | "rss";

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
      case "bytes":
      case "machine":
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
