import type { Spans } from "./protocol";
import { Ring } from "./ring";

/** Batch spans for the timeline. Columns: moments in Unix seconds; NaN where a moment did not come. */
export const SPAN = { start: 0, fetched: 1, collated: 2, sent: 3, yielded: 4, worker: 5, batch: 6 } as const;

/** Rows among which one is looked for that was yielded late: those of about 16 s. */
const LOOK_BACK = 4096;

export class SpanLog {
  readonly ring: Ring;
  /** Every `stride`-th batch is reported. */
  stride = 1;
  /** The longest span so far, in seconds: how far back one must look for spans that reach into a stretch. */
  longest = 0;
  readonly #row = new Float64Array(7);
  /** When each worker sent its last batch. */
  readonly #sent = new Map<number, number>();

  constructor(capacity = 32_768) {
    this.ring = new Ring(7, capacity);
  }

  add(message: Spans): void {
    this.stride = Math.max(1, message.stride);
    const moment = (us: number) => (us < 0 ? Number.NaN : message.base + us / 1e6);
    for (const span of message.spans) {
      const row = this.#row;
      row[SPAN.start] = moment(span.start_us);
      row[SPAN.fetched] = moment(span.fetched_us);
      row[SPAN.collated] = moment(span.collated_us);
      row[SPAN.sent] = moment(span.sent_us);
      row[SPAN.yielded] = moment(span.yielded_us);
      row[SPAN.worker] = span.worker;
      row[SPAN.batch] = span.batch;
      this.ring.push(row);
      this.#sent.set(span.worker, moment(span.sent_us));
      const end = Math.max(...[row[SPAN.sent], row[SPAN.collated], row[SPAN.fetched]].filter((at) => (at ?? 0) > 0) as number[]);
      if (end - (row[SPAN.start] as number) > this.longest) this.longest = end - (row[SPAN.start] as number);
    }
    this.#complete(message);
  }

  /** Note when batches were yielded that were told before. */
  #complete(message: Spans): void {
    for (const span of message.late) {
      const oldest = Math.max(0, this.ring.length - LOOK_BACK);
      for (let row = this.ring.length - 1; row >= oldest; row--) {
        if (this.ring.get(SPAN.batch, row) !== span.batch || this.ring.get(SPAN.worker, row) !== span.worker) continue;
        this.ring.set(SPAN.yielded, row, this.ring.get(SPAN.sent, row) + (span.yielded_us - span.sent_us) / 1e6);
        break;
      }
    }
  }

  /** Workers that sent a batch at this moment or later, whether they are still there or not. */
  workersSince(from: number): number[] {
    return [...this.#sent].filter(([, sent]) => sent >= from).map(([worker]) => worker);
  }

  clear(): void {
    this.ring.clear();
    this.#sent.clear();
    this.longest = 0;
  }
}
