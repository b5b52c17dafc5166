import { describe, expect, it } from "vitest";
import { highest, roundTop, silences, timeSplits } from "../src/charts/scales";
import { bytesText, duration, figure, micros, percent, percents } from "../src/format";

describe("axes", () => {
  it("end at a round number that holds the highest value", () => {
    expect([0, 0.3, 1, 1.2, 7, 61.4, 100, 101].map((value) => roundTop(value))).toEqual([1, 1, 1, 1.5, 8, 80, 100, 150]);
    for (let n = 0; n < 500; n++) {
      const value = 10 ** (n / 50);
      expect(roundTop(value)).toBeGreaterThanOrEqual(value);
      expect(roundTop(value)).toBeLessThanOrEqual(value * 1.7);
    }
  });

  it("ignore what is not a number", () => {
    expect(highest([[1, NaN, 5], [Infinity, 2]])).toBe(5);
    expect(roundTop(NaN)).toBe(1);
  });

  it("mark round clock times", () => {
    expect(timeSplits(1003, 1061, 4)).toEqual([1005, 1020, 1035, 1050]);
    expect(timeSplits(0, 7200, 3, 3600)).toEqual([0, 3600, 7200]);
    expect(timeSplits(0, 1e6, 5).length).toBeLessThanOrEqual(6);
  });

  it("leave silences open", () => {
    expect(silences([1, 2, 3, 9, 10], 2.5)).toEqual([[3, 9]]);
    expect(silences([], 1)).toEqual([]);
  });
});

describe("figures", () => {
  it("keep about three digits", () => {
    expect([0, 0.044, 9.81, 61.44, 904.4, 12_889].map(figure)).toEqual(["0", "0.04", "9.81", "61.4", "904", "12,889"]);
    expect(figure(9.999)).toBe("10.0");
  });

  it("have units", () => {
    expect([0, 999, 1000, 2.31e9].map(bytesText)).toEqual(["0 B", "999 B", "1.00 KB", "2.31 GB"]);
    expect([12, 1500, 830_000, 1_350_000, 125e6].map(micros)).toEqual(["12 µs", "1.50 ms", "830 ms", "1.4 s", "2 min 5 s"]);
    expect([5, 65, 4000, 90_000].map(duration)).toEqual(["5.0 s", "1 min 5 s", "1 h 6 min", "1 d 1 h"]);
    expect([0, 0.001, 0.444, 1].map(percent)).toEqual(["0 %", "<1 %", "44 %", "100 %"]);
  });

  it("of parts add up to 100 per cent", () => {
    expect(percents([1, 1, 1])).toEqual([34, 33, 33]);
    expect(percents([0, 0])).toEqual([0, 0]);
    for (let n = 1; n < 200; n++) {
      const parts = [Math.sin(n) ** 2, Math.cos(n * 3) ** 2, (n % 7) / 7, 0, 0.001, n / 200];
      expect(percents(parts).reduce((sum, part) => sum + part, 0)).toBe(100);
    }
  });
});
