import { describe, expect, it } from "vitest";
import { Ring } from "../src/live/ring";

describe("Ring", () => {
  it("keeps the newest rows, in order, as contiguous views", () => {
    const ring = new Ring(2, 4);
    for (let n = 0; n < 11; n++) ring.push([n, n * 10]);
    expect(ring.length).toBe(4);
    expect([...ring.view(0)]).toEqual([7, 8, 9, 10]);
    expect([...ring.view(1, 1, 3)]).toEqual([80, 90]);
    expect(ring.last(1)).toBe(100);
  });

  it("agrees with a plain array after any number of pushes", () => {
    for (let pushes = 0; pushes < 40; pushes++) {
      const ring = new Ring(1, 7);
      const plain: number[] = [];
      for (let n = 0; n < pushes; n++) {
        ring.push([n]);
        plain.push(n);
      }
      expect([...ring.view(0)]).toEqual(plain.slice(-7));
    }
  });

  it("finds rows by a rising column", () => {
    const ring = new Ring(1, 8);
    for (const at of [1, 3, 5, 7]) ring.push([at]);
    expect([0, 1, 2, 7, 8].map((at) => ring.lowerBound(0, at))).toEqual([0, 0, 1, 3, 4]);
  });

  it("says NaN outside and forgets on clear", () => {
    const ring = new Ring(1, 2);
    expect(ring.last(0)).toBeNaN();
    ring.push([5]);
    ring.clear();
    expect(ring.length).toBe(0);
    expect(ring.get(0, 0)).toBeNaN();
  });
});
