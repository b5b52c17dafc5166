import { describe, expect, it } from "vitest";
import { boxAt, type Choice, found, layoutOf, neighbour, rowsOf, sharesOf, shownOf } from "../src/charts/flame";
import { CallTree, ProfileLog } from "../src/live/profiles";
import type { ProfilePart } from "../src/live/protocol";

const ALL: Choice = { clock: "wall", phase: null, worker: null, libraries: false };

function part(number: number, more: Partial<ProfilePart> = {}): ProfilePart {
  return {
    kind: "profile",
    at: 10 + number,
    profile: "p",
    part: number,
    began: 10,
    seconds: number + 1,
    rate: 50,
    ended: false,
    functions: [],
    nodes: [],
    weights: [],
    idle_ms: [],
    ...more,
  };
}

const user = (name: string) => ({ name, file: "/home/me/data.py", line: 1, user: true });
const library = (name: string) => ({ name, file: "/site-packages/PIL/Image.py", line: 1, user: false });

/** __getitem__ calls decode at two lines, which calls open, which calls load; and augment. */
const FIRST = part(0, {
  functions: [user("__getitem__"), user("decode"), library("open"), library("load"), user("augment")],
  nodes: [0, 0, 5, 1, 1, 41, 2, 2, 9, 3, 3, 2, 1, 1, 42, 0, 0, 6, 6, 4, 50],
  weights: [
    { worker: 0, phase: "fetch", nodes: [4, 5, 7], wall_ms: [600, 20, 100], processor_ms: [10, 0, 100] },
    { worker: 1, phase: "fetch", nodes: [3], wall_ms: [80], processor_ms: [0] },
    { worker: 1, phase: "collate", nodes: [0], wall_ms: [200], processor_ms: [200] },
  ],
});

function tree(...parts: ProfilePart[]): CallTree {
  const made = new CallTree(parts[0] as ProfilePart);
  for (const each of parts) made.add(each);
  return made;
}

describe("profiles", () => {
  it("are put together from parts, whatever order and how often they come", () => {
    const log = new ProfileLog();
    const second = part(1, { ended: true, weights: [{ worker: 0, phase: "fetch", nodes: [7], wall_ms: [50], processor_ms: [5] }] });
    expect(log.add(second)).toBe(false);
    expect(log.add(FIRST)).toBe(true);
    expect(log.add(second)).toBe(false);
    expect(log.add(FIRST)).toBe(false);
    const [only] = log.trees as [CallTree];
    expect(only.ended).toBe(true);
    expect(only.workers).toEqual([0, 1]);
    expect(only.own("wall", null, null).reduce((sum, ms) => sum + ms)).toBe(1050);
    expect(only.own("processor", "collate", 1)[0]).toBe(200);
  });

  it("never mix two profiles, and keep the newest", () => {
    const log = new ProfileLog();
    for (let number = 0; number < 30; number++) log.add(part(0, { profile: `p${number}`, began: number }));
    expect(log.trees).toHaveLength(20);
    expect(log.trees.at(-1)?.id).toBe("p29");
  });
});

describe("the flame graph", () => {
  it("folds what libraries do inside, and shows it when asked", () => {
    const folded = layoutOf(tree(FIRST), ALL);
    expect(folded.boxes.map(({ name, total }) => [name, total])).toEqual([
      ["__getitem__", 800],
      ["decode", 700],
      ["open", 680],
      ["augment", 100],
    ]);
    expect(folded.total).toBe(1000);
    const [, decode, open] = folded.boxes;
    expect(decode?.line).toBe(41);
    expect(open?.own).toBe(680);
    const unfolded = layoutOf(tree(FIRST), { ...ALL, libraries: true });
    expect(unfolded.boxes.map(({ name }) => name)).toContain("load");
    expect(unfolded.depth).toBe(4);
  });

  it("nests every box within its caller, beside its neighbours", () => {
    const { boxes } = layoutOf(tree(FIRST), { ...ALL, libraries: true });
    for (const box of boxes) {
      const outer = boxes[box.caller];
      if (outer === undefined) continue;
      expect(box.start).toBeGreaterThanOrEqual(outer.start);
      expect(box.start + box.total).toBeLessThanOrEqual(outer.start + outer.total);
      expect(box.depth).toBe(outer.depth + 1);
    }
    const second = boxes.filter(({ depth }) => depth === 1).sort((a, b) => a.start - b.start);
    expect((second[0]?.start ?? 0) + (second[0]?.total ?? 0)).toBeLessThanOrEqual(second[1]?.start ?? 0);
  });

  it("can be of one clock, phase or worker", () => {
    expect(layoutOf(tree(FIRST), { ...ALL, clock: "processor" }).total).toBe(310);
    expect(layoutOf(tree(FIRST), { ...ALL, phase: "collate" }).boxes).toEqual([]);
    expect(layoutOf(tree(FIRST), { ...ALL, worker: 1, phase: "fetch" }).total).toBe(80);
  });

  it("is searched, walked through and zoomed", () => {
    const flame = layoutOf(tree(FIRST), ALL);
    expect(found(flame, "DEC")).toBeCloseTo(0.7);
    expect(found(flame, "data.py")).toBeCloseTo(0.8);
    expect(found(flame, "nothing")).toBe(0);
    const decode = neighbour(flame, 0, "in");
    expect(flame.boxes[decode]?.name).toBe("decode");
    expect(flame.boxes[neighbour(flame, decode, "after")]?.name).toBe("augment");
    expect(neighbour(flame, decode, "out")).toBe(0);
    expect(neighbour(flame, 0, "out")).toBe(0);
    const shown = shownOf(flame, decode);
    expect(boxAt(flame, shown, 0.5, 1)).toBe(decode);
    expect(boxAt(flame, shown, 0.5, 0)).toBe(0);
    expect(boxAt(flame, shownOf(flame, -1), 0.99, 0)).toBe(-1);
  });

  it("has a table behind it, and can be compared", () => {
    const flame = layoutOf(tree(FIRST), ALL);
    const [first] = rowsOf(flame, 10);
    expect(first).toMatchObject({ name: "open", own: 0.68, total: 0.68, user: false });
    expect(rowsOf(flame, 2)).toHaveLength(2);
    const decode = flame.boxes[1];
    expect(sharesOf(flame).get(decode?.key ?? "")).toBeCloseTo(0.7);
  });

  it("lays 5,000 stacks out quickly", () => {
    const nodes: number[] = [];
    const leaves: number[] = [];
    for (let stack = 0; stack < 5000; stack++) {
      for (let depth = 0; depth < 10; depth++) nodes.push(depth === 0 ? 0 : nodes.length / 3, (stack * 7 + depth) % 400, 1);
      leaves.push(nodes.length / 3);
    }
    const functions = Array.from({ length: 400 }, (_, number) => user(`f${number}`));
    const large = tree(part(0, { functions, nodes, weights: [{ worker: 0, phase: "fetch", nodes: leaves, wall_ms: leaves.map(() => 20), processor_ms: leaves.map(() => 5) }] }));
    expect(layoutOf(large, ALL).total).toBe(100_000);
  });
});
