import { describe, expect, it } from "vitest";
import { bucketFor, following, moved, niceStep, pointsFor, redrawEvery, zoomed } from "../src/live/ranges";

describe("time ranges", () => {
  it("follows the newest sample", () => {
    expect(following("1m", 1000, 0)).toEqual({ from: 940, to: 1000 });
    expect(following("all", 1000, 200)).toEqual({ from: 200, to: 1000 });
    expect(following("all", 1000, 999)).toEqual({ from: 940, to: 1000 });
  });

  it("puts a stretch into few enough buckets, of round lengths", () => {
    expect([60, 600, 3600, 86_400].map((seconds) => bucketFor(seconds, 0.2))).toEqual([1, 1, 10, 300]);
    expect(bucketFor(60, 2)).toBe(0);
    expect(niceStep(7)).toBe(10);
    expect(niceStep(1e9)).toBe(86_400);
  });

  it("asks for enough points that the backend answers a short stretch from single samples", () => {
    expect(3 * pointsFor(60, 1, 0.2)).toBeGreaterThan(62 / 0.2);
    expect(3 * pointsFor(600, 1, 0.2)).toBeGreaterThan(602 / 0.2);
    expect(pointsFor(3600, 10, 0.2)).toBe(361);
    expect(pointsFor(1e7, 1, 0.2)).toBe(5000);
  });

  it("zooms around a moment, and never under a second", () => {
    expect(zoomed({ from: 0, to: 100 }, 50, 0.5)).toEqual({ from: 25, to: 75 });
    expect(zoomed({ from: 0, to: 100 }, 0, 0.5)).toEqual({ from: 0, to: 50 });
    const least = zoomed({ from: 0, to: 1 }, 0.5, 0.1);
    expect(least.to - least.from).toBe(1);
    expect(moved({ from: 0, to: 10 }, 0.5)).toEqual({ from: 5, to: 15 });
  });

  it("redraws a long stretch seldom", () => {
    expect(redrawEvery(60, 400)).toBeLessThan(0.2);
    expect(redrawEvery(86_400, 400)).toBe(1);
  });
});
