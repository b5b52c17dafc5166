import { describe, expect, it } from "vitest";
import { isOver, progress, resumesAt, withCommand } from "../src/live/commands";
import { counts, describe as inWords, lines, merged, type NotableEvent } from "../src/live/events";
import { applied, FOLD_FROM, grouped, matches, stateOf, stragglerOf } from "../src/live/overview";
import type { Event, StoredEvent } from "../src/live/protocol";
import { Offset, DataAge } from "../src/live/clock";
import { backoff } from "../src/live/backoff";
import { normalised, waitingShare } from "../src/live/shares";
import { sortedLines, WorkerRates } from "../src/live/workers";
import { command, rates, row, snapshot, stall, worker } from "./builders";

const stored = (id: number, event: Event): StoredEvent => ({ id, loader: "run:0:train", event });

describe("overview", () => {
  it("takes changed rows, drops removed ones, and lets a complete message replace all", () => {
    let rows = applied(new Map(), { type: "overview", rows: [row({ rank: 0 }), row({ rank: 1 })], removed: [], complete: true });
    rows = applied(rows, { type: "overview", rows: [row({ rank: 1, workers: 9 })], removed: ["run:0:train"], complete: false });
    expect([...rows.values()].map(({ id, workers }) => [id, workers])).toEqual([["run:1:train", 9]]);
    rows = applied(rows, { type: "overview", rows: [row({ rank: 5 })], removed: [], complete: true });
    expect([...rows.keys()]).toEqual(["run:5:train"]);
  });

  it("calls a broken connection by its name before the loader's own state", () => {
    expect(stateOf({ presence: "stale", state: "running" })).toBe("stale");
    expect(stateOf({ presence: "lost", state: "paused" })).toBe("lost");
    expect(stateOf({ presence: "lost", state: "failed" })).toBe("failed");
    expect(stateOf({ presence: "finished", state: "running" })).toBe("finished");
    expect(stateOf({ presence: "connected", state: "paused" })).toBe("paused");
  });

  it("folds many ranks into a grid and names the straggler", () => {
    const ranks = Array.from({ length: FOLD_FROM }, (_, rank) =>
      row({ rank, rates: rates(rank === 3 ? { compute: 0.4, starvation: 0.6 } : { compute: 0.97, starvation: 0.03 }) }),
    );
    const [run] = grouped([...ranks, row({ name: "val" })], "name", false);
    expect(run?.grids.map(({ name, rows }) => [name, rows.length])).toEqual([["train", FOLD_FROM]]);
    expect(run?.loose.map(({ identity }) => identity.name)).toEqual(["val"]);
    expect(run?.grids[0]?.straggler?.row.identity.rank).toBe(3);
    expect(stragglerOf(ranks.filter(({ identity }) => identity.rank !== 3))).toBeNull();
  });

  it("filters by words and states, and sorts rows without a value last", () => {
    expect(matches(row({ run: "llama", rank: 12 }), "llama rank 12", new Set())).toBe(true);
    expect(matches(row(), "", new Set(["paused"]))).toBe(false);
    const slow = row({ run: "a", rates: rates({ compute: 0.5, starvation: 0.5 }) });
    const paused = row({ run: "b", state: "paused" });
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

  it("tell short stalls in a row as one", () => {
    const have = merged([], [
      stored(1, stall({ us: 4_000 })),
      stored(2, stall({ us: 6_000 })),
      stored(3, stall({ us: 830_000 })),
      stored(4, stall({ us: 2_000 })),
    ]);
    const shown = lines(have, new Set(["stall"]));
    expect(shown.map(({ stalls }) => stalls)).toEqual([1, 1, 2]);
    expect(inWords(shown[2]!)).toBe("2 short stalls, 10.0 ms in all");
    expect(inWords(shown[1]!)).toBe("Stall of 830 ms: batch 100 on worker 2 held back 9 finished batches; slowest sample 91723 took 790 ms");
  });

  it("say how a worker died", () => {
    const died: Event = { kind: "worker", at: 1, what: "died", worker: 1, pid: 7, exitcode: -9, signal: "SIGKILL", batch: 977, retried: true };
    const [line] = lines(merged([], [stored(1, died)]), new Set(["worker"]));
    expect(inWords(line!)).toBe("Worker 1 (pid 7) died at batch 977: SIGKILL; its tasks went to others");
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

  it("say what came of them, and done only when the loader did it", () => {
    expect(progress(command())).toEqual({ phase: "asked", head: "Asked", text: "2 → 6 workers; on its way to the loader" });
    const done = command({ state: "applied", actual: 6, at_batch: 5120, took_us: 140_000 });
    expect(progress(done)).toEqual({ phase: "done", head: "Applied", text: "2 → 6 workers at batch 5,120 after 140 ms" });
    expect(progress(command({ state: "rejected", reason: "the epoch is over" })).text).toContain("the epoch is over");
    expect(progress(command({ state: "pending" })).text).toContain("next epoch");
    for (const state of ["accepted", "delivered", "pending"] as const) expect(progress(command({ state })).phase).not.toBe("done");
  });

  it("know when a pause ends by itself", () => {
    const pause = command({ action: "pause", workers: null, resume_after: 60, state: "applied", transitions: [{ state: "applied", at: 500 }] });
    expect(resumesAt([pause])).toBe(560);
    expect(resumesAt([pause, command({ id: "c2", action: "resume", state: "applied" })])).toBeNull();
    expect(resumesAt([])).toBeNull();
  });
});

describe("workers", () => {
  it("have rates from counters, by process", () => {
    const meter = new WorkerRates();
    meter.note(snapshot({ at: 10, workers: [worker({ pid: 1, batches: 10, fetch_us: 0, cpu_ms: 0, queued_ms: 0 })] }));
    meter.note(snapshot({ at: 12, workers: [worker({ pid: 1, batches: 30, fetch_us: 1_000_000, cpu_ms: 500, queued_ms: 200 })] }));
    expect(meter.lines()[0]).toMatchObject({ rate: 10, fetch: 50_000, processor: 0.25, queued: 0.1, blocked: 0.15, busy: 0.5 });
    meter.note(snapshot({ at: 13, workers: [worker({ pid: 2, batches: 3 })] }));
    expect(meter.lines()[0]?.rate).toBeNaN();
  });

  it("sort with empty values last, either way", () => {
    const meter = new WorkerRates();
    meter.note(snapshot({ at: 10, workers: [worker({ id: 0, pid: 1 }), worker({ id: 1, pid: 2 })] }));
    meter.note(snapshot({ at: 11, workers: [worker({ id: 0, pid: 1, batches: 1 }), worker({ id: 1, pid: 2, batches: 2 }), worker({ id: 2, pid: 3 })] }));
    expect(sortedLines(meter.lines(), "rate", true).map((line) => line.worker.id)).toEqual([1, 0, 2]);
    expect(sortedLines(meter.lines(), "rate", false).map((line) => line.worker.id)).toEqual([0, 1, 2]);
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

  it("back off up to ten seconds", () => {
    expect(backoff(0, 0)).toBe(0.25);
    expect(backoff(0, 1)).toBe(0.5);
    expect(backoff(50, 1)).toBe(10);
  });
});

describe("shares", () => {
  it("count waiting without pauses", () => {
    const shares = { compute: 0.4, starvation: 0.1, reorder_stall: 0, pin_wait: 0, paused: 0.5, startup: 0, sampler: 0 };
    expect(waitingShare(shares)).toBeCloseTo(0.2);
    expect(normalised({ compute: 0, starvation: 0, reorder_stall: 0, pin_wait: 0, paused: 0, startup: 0, sampler: 0 })).toBeNull();
  });
});
