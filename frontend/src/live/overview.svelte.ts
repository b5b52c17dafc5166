import { api } from "./api";
import { now } from "./clock";
import { connection, type Listener } from "./connection.svelte";
import { applied } from "./overview";
import type { LoaderRow, RunSummary, ToViewer } from "./protocol";
import { Ring } from "./ring";

/** A sparkline shows this many seconds. */
export const SPARK_SECONDS = 300;
const SPARK_POINTS = 60;
/** Rows are shown anew at most so often, in milliseconds. */
const SHOW_EVERY = 500;

/** Time and batches per second of one loader. */
export type Spark = Ring;

export class OverviewFeed implements Listener {
  rows = $state.raw<ReadonlyMap<string, LoaderRow>>(new Map());
  /** Runs of several loaders as a whole, by name. */
  runs = $state.raw<ReadonlyMap<string, RunSummary>>(new Map());
  /** False until the first complete overview: an empty list then means that there is nothing. */
  ready = $state(false);
  /** Rises when the past of a loader has come, so that sparklines which no row redraws show it. */
  filled = $state(0);
  readonly #sparks = new Map<string, Spark>();
  readonly #asked = new Set<string>();
  readonly #queue: string[] = [];
  readonly #show = () => this.#publish();
  #latest: ReadonlyMap<string, LoaderRow> = new Map();
  #summaries: ReadonlyMap<string, RunSummary> = new Map();
  #timer = 0;
  #fetching = 0;

  constructor() {
    document.addEventListener("visibilitychange", this.#show);
  }

  close(): void {
    document.removeEventListener("visibilitychange", this.#show);
    clearTimeout(this.#timer);
  }

  subscription() {
    return { overview: true, loaders: [], after: {} };
  }

  opened(): void {}

  receive(message: ToViewer): void {
    if (message.type !== "overview") return;
    for (const row of message.rows) this.spark(row.id).push([row.seen, row.rates.batches]);
    this.#latest = applied(this.#latest, message);
    if (message.runs.length > 0 || message.complete) {
      this.#summaries = new Map([...(message.complete ? [] : this.#summaries), ...message.runs.map((each) => [each.run, each] as const)]);
    }
    for (const id of message.removed) this.#sparks.delete(id);
    if (message.complete) {
      this.ready = true;
      this.#publish();
    } else if (this.#timer === 0) {
      this.#timer = window.setTimeout(() => {
        this.#timer = 0;
        this.#publish();
      }, SHOW_EVERY);
    }
  }

  spark(id: string): Spark {
    let spark = this.#sparks.get(id);
    if (spark === undefined) {
      spark = new Ring(2, 2 * SPARK_SECONDS);
      this.#sparks.set(id, spark);
    }
    return spark;
  }

  /** Ask once for the past of a loader whose row came into sight; a few at a time. */
  fillSpark(id: string): void {
    if (this.#asked.has(id)) return;
    this.#asked.add(id);
    this.#queue.push(id);
    void this.#drain();
  }

  async #drain(): Promise<void> {
    if (this.#fetching >= 3) return;
    this.#fetching += 1;
    for (let id = this.#queue.shift(); id !== undefined; id = this.#queue.shift()) {
      const seen = this.#latest.get(id)?.seen ?? now();
      try {
        const history = await api.history(id, seen - SPARK_SECONDS, seen, SPARK_POINTS);
        this.#prepend(id, history.at, history.mean["batches"] ?? []);
      } catch {
        this.#asked.delete(id);
      }
    }
    this.#fetching -= 1;
  }

  #prepend(id: string, at: readonly number[], batches: readonly number[]): void {
    const live = this.spark(id);
    const first = live.length > 0 ? live.get(0, 0) : Infinity;
    const whole = new Ring(2, live.capacity);
    for (let place = 0; place < at.length; place++) {
      if ((at[place] as number) < first) whole.push([at[place] as number, batches[place] ?? 0]);
    }
    for (let row = 0; row < live.length; row++) whole.push([live.get(0, row), live.get(1, row)]);
    this.#sparks.set(id, whole);
    this.filled += 1;
  }

  #publish(): void {
    if (document.hidden) return;
    this.rows = this.#latest;
    this.runs = this.#summaries;
  }
}

export function openOverview(): { feed: OverviewFeed; close: () => void } {
  const feed = new OverviewFeed();
  const stop = connection.listen(feed);
  return {
    feed,
    close: () => {
      stop();
      feed.close();
    },
  };
}
