import { api } from "./api";
import { DataAge, now } from "./clock";
import { withCommand } from "./commands";
import { connection, type Listener } from "./connection.svelte";
import { EVENT_KINDS, merged, type NotableEvent } from "./events";
import type { CommandRecord, Frame, History, LoaderDetail, Rates, StoredEvent, ToViewer, Verdict } from "./protocol";
import { ProfileLog } from "./profiles";
import { SpanLog } from "./spans";
import { Track } from "./track";
import { linesOf, type WorkerLine } from "./workers";

/** What is kept at full resolution, in samples: ten minutes at the usual 5 Hz. */
const FINE = 3000;
/** What the page asks for at first, in seconds. */
const RECENT = 90;
/** Messages with spans that the timeline asks for at first: five minutes of them at the usual 5 Hz. */
const SPANS = 1500;
const NOTABLE = EVENT_KINDS.map(({ kind }) => kind);

/**
 * Everything the loader page knows, live.
 *
 * Samples and spans live in rings outside Svelte's state; what components read (`frame`, `lines`, `events`,
 * `commands`) is replaced as a whole, at most once a message, and not at all while the page is hidden.
 */
export class LoaderFeed implements Listener {
  readonly id: string;
  detail = $state.raw<LoaderDetail | null>(null);
  frame = $state.raw<Frame | null>(null);
  lines = $state.raw<WorkerLine[]>([]);
  pin = $state.raw({ busy: 0, us: Number.NaN });
  events = $state.raw<NotableEvent[]>([]);
  commands = $state.raw<CommandRecord[]>([]);
  /** What limits, as the newest message has it. */
  verdict = $state.raw<Verdict | null>(null);
  presence = $state<LoaderDetail["row"]["presence"]>("connected");
  gone = $state(false);
  /** Events that this viewer was too slow for and that could not be fetched either. */
  missed = $state(0);

  readonly track = new Track(0, FINE);
  readonly spans = new SpanLog();
  readonly profiles = new ProfileLog();
  /** Rises when spans of the past have come. */
  spanned = $state(0);
  /** Rises with every part of a profile. */
  profiled = $state(0);
  /** The worker whose profile was asked for, from an event; null: none. */
  profileOf = $state<number | null>(null);
  readonly clock = new DataAge(connection.clock);
  readonly #observers = new Set<(frame: Frame | null) => void>();
  readonly #show = () => this.#publish();
  #latest: Frame | null = null;
  #incarnation = "";
  #lastEvent = 0;
  #filling = false;
  /** Where the oldest hole in the live samples begins. */
  #hole = Infinity;
  #mending = 0;
  /** Spans that come while older ones are being fetched; null at all other times. */
  #early: StoredEvent[] | null = null;

  constructor(id: string) {
    this.id = id;
    document.addEventListener("visibilitychange", this.#show);
  }

  close(): void {
    document.removeEventListener("visibilitychange", this.#show);
    clearTimeout(this.#mending);
    this.#observers.clear();
  }

  /** Be told of every sample (with its frame) and of every refill (with null). */
  observe(observer: (frame: Frame | null) => void): () => void {
    this.#observers.add(observer);
    return () => this.#observers.delete(observer);
  }

  subscription() {
    return { overview: false, loaders: [this.id], after: this.#lastEvent > 0 ? { [this.id]: this.#lastEvent } : {} };
  }

  receive(message: ToViewer): void {
    switch (message.type) {
      case "detail":
        if (message.detail.row.id === this.id) this.#take(message.detail);
        break;
      case "frame":
        if (message.loader === this.id) this.#sample(message);
        break;
      case "happened":
        this.#happened(message.events.filter(({ loader }) => loader === this.id));
        break;
      case "gap":
        if (message.loader === this.id) void this.#fetchEvents(message.after);
        break;
      case "command_changed":
        if (message.command.loader === this.id) this.noteCommand(message.command);
        break;
      case "gone":
        if (message.loader === this.id) this.gone = true;
        break;
    }
  }

  /** Subscribed first; now ask for what came before, and let doubles fall away. */
  opened(): void {
    // At first, wait for the detail: it says until when there are data at all.
    if (this.detail !== null) void this.#fill();
    if (this.#lastEvent === 0) {
      void this.#fetchEvents(0);
      void this.#fetchSpans();
      void this.#fetchProfiles();
    }
    api.commands(this.id).then(
      (records) => {
        for (const record of records) this.noteCommand(record);
      },
      () => undefined,
    );
  }

  noteCommand(record: CommandRecord): void {
    this.commands = withCommand(this.commands, record);
  }

  async history(from: number, to: number, points: number): Promise<History | null> {
    try {
      return await api.history(this.id, from, to, points);
    } catch {
      return null;
    }
  }

  /** Nothing more comes: what is shown is the last epoch. */
  get over(): boolean {
    return this.presence === "finished" || this.presence === "lost" || this.frame?.snapshot.state === "closed";
  }

  /** How long the epoch under way, or the last one, has lasted, in seconds. */
  get epochSeconds(): number {
    const times = this.frame?.snapshot.epoch_times;
    return times === undefined ? 0 : Object.values(times).reduce((sum, us) => sum + us, 0) / 1e6;
  }

  /** Mean rates over the last seconds, or the last epoch if that is over: single samples jump too much to be read. */
  average(seconds: number): Rates | null {
    if (this.detail?.last_epoch) return this.detail.last_epoch;
    const last = this.track.last;
    if (this.#latest === null || Number.isNaN(last)) return this.#latest?.rates ?? null;
    const rates = { ...this.#latest.rates };
    for (const key of Object.keys(rates) as (keyof Rates)[]) {
      const mean = this.track.average(key, last - seconds, last + 0.001);
      if (!Number.isNaN(mean)) rates[key] = mean;
    }
    return rates;
  }

  #take(detail: LoaderDetail): void {
    this.gone = false;
    const { incarnation } = detail.row.identity;
    if (this.#incarnation !== "" && incarnation !== this.#incarnation) this.spans.clear();
    this.#incarnation = incarnation;
    const first = this.detail === null;
    this.detail = detail;
    this.presence = detail.row.presence;
    if (detail.snapshot !== null) this.verdict = detail.verdict;
    if (detail.snapshot !== null && this.#latest === null) {
      this.clock.note(detail.snapshot.at, detail.row.seen);
      this.#latest = {
        type: "frame",
        loader: this.id,
        snapshot: detail.snapshot,
        rates: detail.row.rates,
        presence: detail.row.presence,
        at: detail.row.seen,
        verdict: detail.verdict,
        recent: detail.row.rates,
        workers: [],
        pin_busy: 0,
        pin_us: null,
        machines: detail.machines,
      };
      this.#publish();
    }
    if (first) void this.#fill();
  }

  #sample(frame: Frame): void {
    this.clock.note(frame.snapshot.at, frame.at);
    this.#mind(frame.snapshot.at);
    this.track.push(frame.snapshot.at, frame.rates, frame.snapshot.between);
    this.#latest = frame;
    this.presence = frame.presence;
    this.#publish();
    for (const observer of this.#observers) observer(frame);
  }

  /**
   * Frames may be skipped: the backend sends a slow viewer only the latest, and a loader that was cut off sends what
   * it kept all at once. What was skipped is stored, so a moment later it is fetched.
   */
  #mind(at: number): void {
    const { last } = this.track;
    const interval = (this.detail?.interval_us ?? 200_000) / 1e6;
    if (Number.isNaN(last) || at - last <= Math.max(1, 4 * interval)) return;
    this.#hole = Math.min(this.#hole, last);
    clearTimeout(this.#mending);
    this.#mending = window.setTimeout(() => void this.#fill(), 1000);
  }

  #publish(): void {
    if (document.hidden || this.#latest === null || this.#latest === this.frame) return;
    this.frame = this.#latest;
    if (this.presence === "connected") this.verdict = this.#latest.verdict;
    this.lines = linesOf(this.#latest);
    this.pin = { busy: this.#latest.pin_busy, us: this.#latest.pin_us ?? Number.NaN };
  }

  #happened(stored: readonly StoredEvent[]): void {
    for (const each of stored) {
      const { id, event } = each;
      if (id <= this.#lastEvent) continue;
      this.#lastEvent = id;
      if (event.kind === "profile" && this.profiles.add(event)) this.profiled += 1;
      if (event.kind !== "spans") continue;
      if (this.#early === null) this.spans.add(event);
      else this.#early.push(each);
    }
    this.events = merged(this.events, stored);
  }

  async #fetchEvents(after: number): Promise<void> {
    try {
      this.events = merged(this.events, await api.events(this.id, NOTABLE, 500, after));
    } catch {
      if (after > 0) this.missed += 1;
    }
  }

  /** What the timeline shows at first. Spans that came live meanwhile are newer; they wait their turn. */
  async #fetchSpans(): Promise<void> {
    this.#early = [];
    const stored = await api.events(this.id, ["spans"], SPANS).catch(() => []);
    const waiting = this.#early;
    this.#early = null;
    const known = new Set(stored.map(({ id }) => id));
    for (const { event } of [...stored, ...waiting.filter(({ id }) => !known.has(id))]) {
      if (event.kind === "spans") this.spans.add(event);
    }
    this.spanned += 1;
  }

  async #fetchProfiles(): Promise<void> {
    for (const { event } of await api.events(this.id, ["profile"], 200).catch(() => [])) {
      if (event.kind === "profile" && this.profiles.add(event)) this.profiled += 1;
    }
  }

  async #fill(): Promise<void> {
    if (this.#filling) return;
    this.#filling = true;
    try {
      const end = this.#end();
      const behind = this.track.length > 1 ? this.track.last - 1 : end - RECENT;
      const from = Math.max(Math.min(behind, this.#hole, end - 5), end - 600);
      this.#hole = Infinity;
      const history = await this.history(from, end + 5, FINE);
      if (history === null) return;
      this.track.merge(history);
      for (const observer of this.#observers) observer(null);
    } finally {
      this.#filling = false;
    }
  }

  /** Until when there are data: for a loader that is gone, that is not now. */
  #end(): number {
    const last = this.#latest?.snapshot.at;
    const here = this.presence === "connected" || last === undefined;
    return here ? this.clock.toLoader(now()) : last;
  }
}

export function openLoader(id: string): { feed: LoaderFeed; close: () => void } {
  const feed = new LoaderFeed(id);
  const stop = connection.listen(feed);
  return {
    feed,
    close: () => {
      stop();
      feed.close();
    },
  };
}
