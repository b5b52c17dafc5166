import { describe, expect, it } from "vitest";
import { Track } from "../src/live/track";
import { history, rates } from "./builders";

const all = (track: Track) => ({
  at: [...track.times(0, track.length)],
  mean: [...track.mean("batches", 0, track.length)],
  low: [...track.low("batches", 0, track.length)],
  high: [...track.high("batches", 0, track.length)],
});

describe("Track of single samples", () => {
  it("takes every sample once, whether heard live or from history", () => {
    const track = new Track(0, 100);
    track.push(10, rates({ batches: 1 }));
    track.push(10.2, rates({ batches: 2 }));
    track.push(10.2, rates({ batches: 99 }));
    track.merge(history([9.8, 10, 10.2], [7, 1, 2]));
    expect(all(track).at).toEqual([9.8, 10, 10.2]);
    expect(all(track).mean).toEqual([7, 1, 2]);
    expect(track.banded).toBe(false);
  });

  it("fills the hole that an outage left", () => {
    const track = new Track(0, 100);
    for (const at of [1, 1.2, 1.4, 5, 5.2]) track.push(at, rates({ batches: at }));
    track.merge(history([1.4, 2, 3, 4, 5], [1.4, 2, 3, 4, 5]));
    expect(all(track).at).toEqual([1, 1.2, 1.4, 2, 3, 4, 5, 5.2]);
  });

  it("keeps only its capacity, the newest", () => {
    const track = new Track(0, 3);
    track.push(9, rates());
    track.merge(history([1, 2, 3, 4], [1, 2, 3, 4]));
    expect(all(track).at).toEqual([3, 4, 9]);
  });
});

describe("Track of a loader that publishes more rarely than it looks", () => {
  const between = (low: number, high: number) => ({ looks: 5, low: rates({ batches: low }), high: rates({ batches: high }) });

  it("shows the spike between two frames", () => {
    const track = new Track(0, 100);
    track.push(10, rates({ batches: 4 }), between(1, 90));
    expect(all(track)).toEqual({ at: [10], mean: [4], low: [1], high: [90] });
    expect(track.banded).toBe(true);
  });

  it("keeps the spike in a bucket, and counts every look", () => {
    const track = new Track(2, 100);
    track.push(10.1, rates({ batches: 4 }));
    track.push(11.1, rates({ batches: 10 }), between(0, 90));
    expect(all(track)).toEqual({ at: [11], mean: [9], low: [0], high: [90] });
  });

  it("shows the lows and highs that history has of single samples", () => {
    const track = new Track(0, 100);
    track.merge({ ...history([10], [4]), low: { batches: [1] }, high: { batches: [90] } });
    expect(all(track)).toEqual({ at: [10], mean: [4], low: [1], high: [90] });
    expect(track.banded).toBe(true);
  });

  it("takes no slow pace for a silence, though it was watched later", () => {
    const track = new Track(0, 1000);
    for (let at = 0; at <= 60; at += 4) track.push(at, rates());
    for (let at = 60.2; at < 80; at += 0.2) track.push(at, rates());
    expect(track.patience).toBeGreaterThan(4);
    expect(track.patience).toBeLessThan(10);
  });
});

describe("Track of buckets", () => {
  it("folds samples into mean, low and high", () => {
    const track = new Track(1, 100);
    for (const [at, batches] of [[10.1, 2], [10.3, 6], [10.9, 4], [11.1, 8]] as const) track.push(at, rates({ batches }));
    expect(all(track)).toEqual({ at: [10.5, 11.5], mean: [4, 8], low: [2, 8], high: [6, 8] });
    expect(track.banded).toBe(true);
  });

  it("folds finer history, so that a spike survives", () => {
    const track = new Track(1, 100);
    track.merge(history([10.1, 10.3, 10.5], [1, 1, 100]));
    expect(all(track)).toEqual({ at: [10.5], mean: [34], low: [1], high: [100] });
  });

  it("prefers the bucket that saw more of the same second", () => {
    const track = new Track(1, 100);
    track.push(10.9, rates({ batches: 50 }));
    track.merge(history([10.1, 10.3, 10.5, 10.7], [2, 2, 2, 2]));
    expect(all(track).mean).toEqual([2]);
  });

  it("averages over a range by weight", () => {
    const track = new Track(0, 100);
    for (let n = 0; n < 10; n++) track.push(n, rates({ batches: n < 5 ? 0 : 10 }));
    expect(track.average("batches", 0, 10)).toBe(5);
    expect(track.average("batches", 5, 10)).toBe(10);
    expect(track.average("batches", 50, 60)).toBeNaN();
  });

  it("copies a stretch that the ring may later forget", () => {
    const track = new Track(0, 4);
    for (let n = 0; n < 4; n++) track.push(n, rates({ batches: n }));
    const copy = track.slice(1, 2);
    for (let n = 4; n < 9; n++) track.push(n, rates());
    expect([...copy.times(0, copy.length)]).toEqual([0, 1, 2]);
  });
});
