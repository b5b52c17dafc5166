import { now } from "../live/clock";
import type { LoaderFeed } from "../live/loader.svelte";
import { bucketFor, following, moved, POINTS, pointsFor, type RangeId, RANGES, redrawEvery, secondsOf, type Stretch, zoomed } from "../live/ranges";
import { type RateKey, Track } from "../live/track";
import type { Look } from "../route";
import type { Mark } from "./marks";
import { REST } from "./visible";

/** What a chart does when its turn comes: draw this track between these moments. */
export type Draw = (track: Track, stretch: Stretch) => void;

/**
 * What all charts of a page show: one stretch of time, one cursor, one set of marks.
 *
 * Following, the stretch ends with the newest sample. Frozen or zoomed, it stands still on a track of its own, so
 * that nothing slides out from under the reader. Every change asks for one animation frame in which every visible
 * chart is drawn once.
 */
export class ChartView {
  range = $state<RangeId>("1m");
  frozen = $state(false);
  zooming = $state(false);
  /** The stretch that stands still, frozen or zoomed into; null: the newest is followed. */
  fixed = $state.raw<Stretch | null>(null);
  /** What the backend remembers of the stretch that is zoomed into; null: nothing was asked for, or has come. */
  zoomed = $state.raw<Track | null>(null);
  /** True while the track shown has more than one sample a point. */
  banded = $state(false);
  loading = $state(false);
  /** The moment under the cursor of any chart; NaN without one. */
  cursor = $state(Number.NaN);
  marks: readonly Mark[] = [];

  readonly #feed: LoaderFeed;
  readonly #draws = new Map<Draw, { visible: boolean; drawn: number }>();
  readonly #stop: () => void;
  readonly #timer: number;
  readonly #show = () => this.invalidate();
  #track: Track;
  /** The track that takes over once its history has come; it hears live samples already. */
  #loading: Track | null = null;
  #frame = 0;
  #drawn = 0;
  #asked = 0;

  constructor(feed: LoaderFeed) {
    this.#feed = feed;
    this.#track = feed.track;
    this.#stop = feed.observe((frame) => {
      if (frame === null) {
        if (this.fixed === null) this.choose(this.range);
        else if (this.#track.length < 2) void this.zoomTo(this.fixed); // it could not be asked for before
        return;
      }
      if (this.#track !== feed.track && this.fixed === null) {
        this.#track.push(frame.snapshot.at, frame.rates, frame.snapshot.between);
        this.#loading?.push(frame.snapshot.at, frame.rates, frame.snapshot.between);
        if (this.#track.length >= this.#track.capacity - 1 && this.range === "all") void this.#load();
      }
      this.#sampled();
    });
    // Data that stays away must be seen to stay away: the stretch goes on without it.
    this.#timer = window.setInterval(() => {
      if (this.fixed === null && this.#silent()) this.invalidate();
    }, 1000);
    document.addEventListener("visibilitychange", this.#show);
  }

  close(): void {
    this.#stop();
    clearInterval(this.#timer);
    cancelAnimationFrame(this.#frame);
    document.removeEventListener("visibilitychange", this.#show);
  }

  /** What is looked at, for the address. */
  look(): Record<string, string | null> {
    const { fixed, range } = this;
    const moment = (at: number | undefined) => (at === undefined ? null : at.toFixed(2));
    return { range: range === "1m" ? null : range, from: moment(fixed?.from), to: moment(fixed?.to) };
  }

  /** Look at what an address says. */
  restore(look: Look): void {
    const range = RANGES.find(({ id }) => id === look.range)?.id;
    if (range !== undefined) this.choose(range);
    const [from, to] = [Number(look.from), Number(look.to)];
    if (from > 0 && to - from >= 0.1) void this.zoomTo({ from, to });
  }

  /** A chart is there. It is drawn whenever something changes while it can be seen, and now and then if not. */
  register(draw: Draw): { see: (visible: boolean) => void; stop: () => void } {
    const seat = { visible: false, drawn: -Infinity };
    this.#draws.set(draw, seat);
    this.invalidate();
    return {
      see: (visible) => {
        seat.visible = visible;
        if (visible) this.invalidate();
      },
      stop: () => this.#draws.delete(draw),
    };
  }

  /** Draw soon. `all`: what cannot be seen, too. */
  invalidate(all = false): void {
    if (all) for (const seat of this.#draws.values()) seat.drawn = -Infinity;
    if (this.#frame !== 0 || document.hidden) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#drawn = now();
      const stretch = this.stretch();
      this.banded = this.#track.banded;
      for (const [draw, seat] of this.#draws) {
        if (!seat.visible && this.#drawn - seat.drawn < REST) continue;
        seat.drawn = this.#drawn;
        draw(this.#track, stretch);
      }
    });
  }

  stretch(): Stretch {
    return this.fixed ?? following(this.range, this.#edge(), this.#started());
  }

  /** What is written beside a title: a rate's mean over the last two seconds, or over all that is shown of a loader that
   * is gone, or its value at the end of what stands still. */
  recent(key: RateKey): number {
    if (this.fixed !== null) return this.#track.latest(key);
    const { detail, over, track } = this.#feed;
    if (over) {
      const { from, to } = this.stretch();
      return detail?.last_epoch?.[key] || this.#track.average(key, from, to + 0.001);
    }
    const mean = track.average(key, track.last - 2, track.last + 0.001);
    return Number.isNaN(mean) ? (this.#feed.frame?.rates[key] ?? 0) : mean;
  }

  choose(range: RangeId): void {
    this.range = range;
    this.frozen = false;
    this.zooming = false;
    this.fixed = null;
    this.zoomed = null;
    if (bucketFor(this.#seconds(), this.#interval()) === 0) {
      this.#track = this.#feed.track;
      this.#asked += 1;
    } else {
      void this.#load();
    }
    this.invalidate(true);
  }

  /** Show so many seconds at least, if nobody has chosen a stretch. */
  cover(seconds: number): void {
    const range = RANGES.find((each) => each.seconds >= seconds);
    if (this.fixed === null && range !== undefined && range.id !== this.range) this.choose(range.id);
  }

  freeze(): void {
    if (this.fixed !== null) return;
    const stretch = this.stretch();
    this.#track = this.#track.slice(stretch.from, stretch.to);
    this.fixed = stretch;
    this.frozen = true;
    this.invalidate(); // what was drawn last may be a few samples older
  }

  follow(): void {
    this.choose(this.range);
  }

  toggle(): void {
    if (this.fixed === null) this.freeze();
    else this.follow();
  }

  /** Look closer at a stretch; the backend may remember it in more detail than the screen showed. */
  async zoomTo(stretch: Stretch): Promise<void> {
    this.freeze();
    this.zooming = true;
    this.fixed = stretch;
    this.invalidate();
    const asked = ++this.#asked;
    const points = pointsFor(stretch.to - stretch.from, (stretch.to - stretch.from) / POINTS, this.#interval());
    const history = await this.#feed.history(stretch.from, stretch.to, points);
    if (history === null || asked !== this.#asked || history.at.length < 2) return;
    const track = new Track(0, Math.max(POINTS, history.at.length));
    track.merge(history);
    this.#track = track;
    this.zoomed = track;
    this.invalidate();
  }

  zoom(factor: number, around: number = this.#middle()): void {
    void this.zoomTo(zoomed(this.stretch(), around, factor));
  }

  move(share: number): void {
    void this.zoomTo(moved(this.stretch(), share));
  }

  async #load(): Promise<void> {
    const asked = ++this.#asked;
    const seconds = this.#seconds();
    const step = bucketFor(seconds, this.#interval());
    const end = this.#edge();
    const track = new Track(step, POINTS * 2);
    this.#loading = track;
    this.loading = true;
    const points = pointsFor(seconds, step, this.#interval());
    const history = await this.#feed.history(end - seconds - step, end + step, points);
    if (asked !== this.#asked) return;
    this.loading = false;
    this.#loading = null;
    if (history !== null) track.merge(history);
    this.#track = track;
    this.invalidate(true);
  }

  #sampled(): void {
    if (this.fixed !== null) return;
    const pause = redrawEvery(this.#seconds(), 400);
    if (now() - this.#drawn >= pause * 0.9) this.invalidate();
  }

  #seconds(): number {
    const seconds = secondsOf(this.range);
    return seconds === Infinity ? Math.max(60, this.#edge() - this.#started()) : seconds;
  }

  #interval(): number {
    return (this.#feed.detail?.interval_us ?? 200_000) / 1e6;
  }

  #started(): number {
    const started = this.#feed.detail?.row.started ?? 0;
    return started > 0 ? started : this.#edge() - 60;
  }

  /** The right edge: the newest sample, or the present if samples fail to come from a loader that should send. */
  #edge(): number {
    const last = this.#feed.track.last;
    if (Number.isNaN(last)) return this.#feed.frame?.snapshot.at ?? now();
    return this.#silent() ? this.#feed.clock.toLoader(now()) : last;
  }

  #silent(): boolean {
    const over = this.#feed.presence === "finished" || this.#feed.presence === "lost";
    return !over && this.#feed.clock.age(now()) > 1.5;
  }

  #middle(): number {
    if (!Number.isNaN(this.cursor)) return this.cursor;
    const { from, to } = this.stretch();
    return (from + to) / 2;
  }
}
