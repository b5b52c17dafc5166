import { describe, expect, it } from "vitest";
import { diagnose, type Evidence } from "../src/live/diagnosis";
import type { Shares } from "../src/live/shares";
import { config, rates, snapshot, stall, worker } from "./builders";

function shares(some: Partial<Shares>): Shares {
  const rest = 1 - Object.values(some).reduce((sum, share) => sum + share, 0);
  return { compute: rest, starvation: 0, reorder_stall: 0, pin_wait: 0, paused: 0, startup: 0, sampler: 0, ...some };
}

function evidence(some: Partial<Evidence> = {}): Evidence {
  return {
    snapshot: snapshot(),
    config: config(),
    presence: "connected",
    shares: shares({}),
    rates: rates({ batches: 60, busy: 2, workers: 4 }),
    stalls: [],
    silence: 0.2,
    failure: "",
    ...some,
  };
}

describe("what limits", () => {
  it("is training if it hardly waits", () => {
    const said = diagnose(evidence({ shares: shares({ starvation: 0.02 }), rates: rates({ busy: 1, workers: 4 }) }));
    expect(said).toMatchObject({ verdict: "Compute-bound.", tone: "good", limit: "training" });
    expect(said.advice).toBe("The 4 workers are busy 25 % of the time; 2 would do.");
  });

  it("is the workers if all are busy and nothing is finished", () => {
    const said = diagnose(evidence({ shares: shares({ starvation: 0.5 }), rates: rates({ busy: 3.9, batches: 60 }) }));
    expect(said).toMatchObject({ verdict: "Data-bound.", tone: "bad", limit: "workers" });
    expect(said.sentence).toBe(
      "In the last 10 s training waited 50 % of the time. All 4 workers are busy and nothing is finished ahead: the workers are the limit.",
    );
    expect(said.advice).toBe("About 9 workers would keep up, if there are cores for them.");
  });

  it("does not promise what more workers cannot keep", () => {
    const said = diagnose(evidence({ shares: shares({ starvation: 0.95 }), rates: rates({ busy: 4 }) }));
    expect(said.advice).toBe("Even 16 workers would hardly keep up; make single samples cheaper.");
  });

  it("is a single slow batch if others are finished behind it", () => {
    const held = snapshot({
      batch: 1285,
      queues: { reorder: 9, in_flight: 12 },
      workers: [worker({ id: 2, batch: 1285 }), worker({ id: 3, pid: 103, batch: 1297 })],
    });
    const said = diagnose(evidence({ snapshot: held, shares: shares({ reorder_stall: 0.4 }), rates: rates({ busy: 1 }) }));
    expect(said.limit).toBe("reorder");
    expect(said.sentence).toContain("Batch 1,285 on worker 2 is holding back 9 finished batches.");
  });

  it("names the longest stall of the last minute", () => {
    const said = diagnose(evidence({ shares: shares({ reorder_stall: 0.4 }), stalls: [stall({ us: 200_000 }), stall({ us: 830_000 })] }));
    expect(said.sentence).toContain("The longest stall was 830 ms, for batch 100 on worker 2 (sample 91723: 790 ms).");
  });

  it("is the pin stage if finished batches wait for it", () => {
    expect(diagnose(evidence({ shares: shares({ pin_wait: 0.2 }) }))).toMatchObject({ limit: "pin", verdict: "Partly data-bound.", tone: "warn" });
  });

  it("is the workers whatever the waiting looks like, if they never idle", () => {
    for (const kind of ["reorder_stall", "pin_wait"] as const) {
      const said = diagnose(evidence({ shares: shares({ [kind]: 0.4 }), rates: rates({ busy: 3.9 }) }));
      expect(said.limit).toBe("workers");
      expect(said.sentence).toContain("All 4 workers are busy all the time");
    }
  });

  it("is whoever hands out tasks if workers idle though the window has room", () => {
    expect(diagnose(evidence({ shares: shares({ starvation: 0.4 }), rates: rates({ busy: 1 }) })).limit).toBe("sampler");
    const full = snapshot({ queues: { in_flight: 16, window: 16 } });
    expect(diagnose(evidence({ snapshot: full, shares: shares({ starvation: 0.4 }), rates: rates({ busy: 1 }) })).limit).toBe("index");
  });

  it("is the missing workers if there are none", () => {
    const said = diagnose(evidence({ snapshot: snapshot({ workers: [] }), shares: shares({ starvation: 0.4 }) }));
    expect(said.advice).toContain("num_workers=1");
  });

  it("is the start of an epoch if that is most of the waiting", () => {
    expect(diagnose(evidence({ shares: shares({ startup: 0.2 }) })).advice).toContain("persistent_workers=True");
  });

  it("does not blame data for a pause", () => {
    expect(diagnose(evidence({ shares: shares({ paused: 0.9 }) })).verdict).toBe("Compute-bound.");
  });
});

describe("what is over or suspended", () => {
  it("is said plainly", () => {
    expect(diagnose(evidence({ snapshot: snapshot({ state: "paused", queues: { data: 3 } }) }))).toMatchObject({
      verdict: "Paused.",
      sentence: "No new task is taken up. 3 batches are still ready.",
    });
    expect(diagnose(evidence({ presence: "lost", silence: 75 })).sentence).toContain("Nothing has been heard for 1 min");
    expect(diagnose(evidence({ presence: "finished" })).verdict).toBe("Finished.");
    expect(diagnose(evidence({ snapshot: snapshot({ state: "idle" }) })).verdict).toBe("Idle.");
    expect(diagnose(evidence({ snapshot: snapshot({ batch: 0 }) })).verdict).toBe("Starting.");
    expect(diagnose(evidence({ shares: null })).verdict).toBe("Measuring.");
  });

  it("gives the reason of a failure", () => {
    const said = diagnose(evidence({ snapshot: snapshot({ state: "failed" }), failure: "OSError: truncated\n  at line 3" }));
    expect(said).toMatchObject({ verdict: "Failed.", tone: "bad", sentence: "Epoch 0 ended in an error. OSError: truncated" });
  });
});
