import { describe, expect, it } from "vitest";
import { isOver, resumesAt, withCommand } from "../src/live/commands";
import { counts, lines, merged, type NotableEvent, sentence } from "../src/live/events";
import { applied, FOLD_FROM, grouped, matches, ordered, stateOf, waits } from "../src/live/overview";
import { decodeWorkerRates, type Event, type StoredEvent } from "../src/live/protocol";
import { Offset, DataAge } from "../src/live/clock";
import { backoff } from "../src/live/backoff";
import { normalised } from "../src/live/shares";
import { linesOf, sortedLines } from "../src/live/workers";
import { command, frame, row, stall, worker } from "./builders";

const stored = (id: number, event: Event, some: Partial<StoredEvent> = {}): StoredEvent => ({
  id,
  loader: "run:0:train",
  event,
  text: `words ${id}`,
  tone: "plain",
  fold: "",
  same: "",
  ...some,
});

describe("overview", () => {
  it("takes changed rows, drops removed ones, and lets a complete message replace all", () => {
    let rows = applied(new Map(), { rows: [row({ rank: 0 }), row({ rank: 1 })], removed: [], complete: true });
    rows = applied(rows, { rows: [row({ rank: 1, workers: 9 })], removed: ["run:0:train"], complete: false });
    expect([...rows.values()].map(({ id, workers }) => [id, workers])).toEqual([["run:1:train", 9]]);
    rows = applied(rows, { rows: [row({ rank: 5 })], removed: [], complete: true });
    expect([...rows.keys()]).toEqual(["run:5:train"]);
  });

  it("calls a broken connection by its name before the loader's own state", () => {
    expect(stateOf({ presence: "stale", state: "running" })).toBe("stale");
    expect(stateOf({ presence: "lost", state: "paused" })).toBe("lost");
    expect(stateOf({ presence: "lost", state: "failed" })).toBe("failed");
    expect(stateOf({ presence: "finished", state: "running" })).toBe("finished");
    expect(stateOf({ presence: "connected", state: "paused" })).toBe("paused");
  });

  it("folds many ranks into a grid, in order of what they wait for", () => {
    const ranks = Array.from({ length: FOLD_FROM }, (_, rank) =>
      row(rank === 3 ? { rank, waiting: 0.6, waits_for: "starvation" } : { rank, waiting: 0.03 }),
    );
    const [run] = grouped([...ranks, row({ name: "val" })], "name", false);
    expect(run?.grids.map(({ name, rows }) => [name, rows.length])).toEqual([["train", FOLD_FROM]]);
    expect(run?.loose.map(({ identity }) => identity.name)).toEqual(["val"]);
    const pinned = row({ rank: 90, waiting: 0.8, waits_for: "pin_wait" });
    const lost = row({ rank: 91, presence: "lost", waiting: null });
    const mixed = [...ranks, row({ rank: 70, waiting: 0.9, waits_for: "starvation" }), pinned, lost];
    expect(waits(mixed)).toEqual([["starvation", 2], ["pin_wait", 1]]);
    expect(waits([...ranks, pinned])).toEqual([["pin_wait", 1], ["starvation", 1]]);
    expect(ordered(mixed, "waiting").map(({ identity }) => identity.rank)).toEqual([91, 70, 3, 90, 0, 1, 2, 4]);
    expect(ordered(mixed, "rank").map(({ identity }) => identity.rank)).toEqual([0, 1, 2, 3, 4, 70, 90, 91]);
  });

  it("filters by words and states, and sorts rows without a value last", () => {
    expect(matches(row({ run: "llama", rank: 12 }), "llama rank 12", new Set())).toBe(true);
    expect(matches(row(), "", new Set(["paused"]))).toBe(false);
    const slow = row({ run: "a", waiting: 0.5 });
    const paused = row({ run: "b", state: "paused", waiting: null });
    const fast = row({ run: "c" });
    expect(grouped([paused, fast, slow], "waiting", true).map(({ run }) => run)).toEqual(["a", "c", "b"]);
  });
});

describe("events", () => {
  const events = (list: readonly NotableEvent[]) => list.map(({ id }) => id);

  it("are merged by id, each once, in order, without spans", () => {
    const spans: Event = { kind: "spans", at: 1, base: 1, spans: [], stride: 1, late: [] };
    let have = merged([], [stored(4, stall()), stored(5, spans), stored(6, stall())]);
    have = merged(have, [stored(2, stall()), stored(4, stall()), stored(7, stall())]);
    expect(events(have)).toEqual([2, 4, 6, 7]);
    expect(events(merged(have, [stored(8, stall())], 2))).toEqual([7, 8]);
    expect(counts(have).stall).toBe(4);
  });

  it("are told as one if the backend calls them the same and they follow each other", () => {
    const short = { fold: "short stalls" };
    const born: Event = { kind: "worker", at: 1, what: "born", worker: 0, pid: 7, exitcode: 0, signal: "", batch: -1, retried: false, others: [[1, 8], [2, 9]] };
    const have = merged([], [
      stored(1, stall({ us: 4_000 }), short),
      stored(2, stall({ us: 6_000 }), short),
      stored(3, stall({ us: 830_000 })),
      stored(4, stall({ us: 2_000 }), short),
      stored(5, born, { fold: "workers started" }),
      stored(6, { ...born, others: [] }, { fold: "workers started" }),
    ]);
    const shown = lines(have, new Set(["stall", "worker"]));
    expect(shown.map(sentence)).toEqual(["4 workers started", "words 4", "words 3", "2 short stalls, 10.0 ms in all"]);
  });

  it("that last give way to what is said of them anew", () => {
    const same = { same: "stall 990:0:100" };
    const have = merged([], [stored(1, stall({ ongoing: true }), same), stored(2, stall({ ongoing: true }), same), stored(3, stall(), same)]);
    expect(lines(have, new Set(["stall"])).map(({ id }) => id)).toEqual([3]);
    expect(lines(have.slice(0, 2), new Set(["stall"])).map(({ id }) => id)).toEqual([2]);
    expect(counts(have).stall).toBe(1);
  });
});

describe("commands", () => {
  const at = (state: "accepted" | "delivered" | "applied", count: number) =>
    command({ state, transitions: Array.from({ length: count }, (_, n) => ({ state, at: 1000 + n })) });

  it("never go back to an older state", () => {
    let have = withCommand([], at("delivered", 2));
    have = withCommand(have, at("accepted", 1));
    expect(have[0]?.state).toBe("delivered");
    have = withCommand(have, at("applied", 3));
    expect(have.map(({ state }) => state)).toEqual(["applied"]);
    expect(isOver(have[0]!)).toBe(true);
  });

  it("know when a pause ends by itself", () => {
    const pause = command({ action: "pause", workers: null, resume_after: 60, state: "applied", transitions: [{ state: "applied", at: 500 }] });
    expect(resumesAt([pause])).toBe(560);
    expect(resumesAt([pause, command({ id: "c2", action: "resume", state: "applied" })])).toBeNull();
    expect(resumesAt([])).toBeNull();
  });
});

describe("workers", () => {
  const nothing = decodeWorkerRates([]);
  const shown = frame({
    workers: [[1], [2], []].map(([batches]) => ({ ...nothing, batches: batches ?? null })),
    snapshot: { workers: [worker({ id: 0, pid: 1 }), worker({ id: 1, pid: 2 }), worker({ id: 2, pid: 3 })] },
  });

  it("have the rates that came with the frame; unknown ones are no number", () => {
    expect(linesOf(shown).map(({ rate }) => rate)).toEqual([1, 2, Number.NaN]);
    expect(linesOf(shown)[0]?.fetch).toBeNaN();
  });

  it("say on which machine each worker runs", () => {
    const away = { name: "beta", workers: [1], processors: 8, received_kib: 1, full_ms: 0, way_us: 0, lost: 0 };
    const spread = { ...shown, snapshot: { ...shown.snapshot, machines: [away] } };
    expect(linesOf(spread).map(({ machine }) => machine)).toEqual(["", "beta", ""]);
    expect(sortedLines(linesOf(spread), "machine", true)[0]?.worker.id).toBe(1);
  });

  it("sort with empty values last, either way", () => {
    expect(sortedLines(linesOf(shown), "rate", true).map((line) => line.worker.id)).toEqual([1, 0, 2]);
    expect(sortedLines(linesOf(shown), "rate", false).map((line) => line.worker.id)).toEqual([0, 1, 2]);
  });
});

describe("clocks", () => {
  it("give the age of data although no two clocks agree", () => {
    const backend = new Offset();
    const age = new DataAge(backend);
    // The loader is 100 s ahead of the backend, the backend 30 s behind the browser; transit takes 10 ms each.
    for (let n = 0; n < 10; n++) {
      const real = 1000 + n * 0.2;
      age.note(real + 100, real + 0.01);
      backend.note(real + 0.01 - 30, real + 0.02 - 30 + 30);
    }
    const skewed = new DataAge(backend);
    for (let n = 0; n < 10; n++) skewed.note(1100 + n * 0.2, 970.01 + n * 0.2);
    expect(skewed.age(1001.8)).toBeCloseTo(0, 1);
    expect(skewed.age(1011.8)).toBeCloseTo(10, 1);
    // A snapshot that was held up for five seconds is five seconds old when it comes.
    skewed.note(1110, 985.01);
    expect(skewed.age(1015.02)).toBeCloseTo(5, 1);
  });

  it("back off, but never so long that a backend is back for three seconds before it is tried", () => {
    expect(backoff(0, 0)).toBe(0.25);
    expect(backoff(0, 1)).toBe(0.5);
    expect(backoff(50, 1)).toBe(2.5);
  });
});

describe("shares", () => {
  it("are none where no time has passed", () => {
    expect(normalised({ compute: 0, starvation: 0, reorder_stall: 0, pin_wait: 0, paused: 0, startup: 0, sampler: 0 })).toBeNull();
    expect(normalised({ compute: 1, starvation: 3, reorder_stall: 0, pin_wait: 0, paused: 0, startup: 0, sampler: 0 })?.starvation).toBe(0.75);
  });
});
