/** The same cases as `tests/backend/terminal/test_diagnosis.py`: the dashboard and the terminal say the same. */
import { describe, expect, it } from "vitest";
import { diagnose, type Evidence } from "../src/live/diagnosis";
import { decodeTimes } from "../src/live/protocol";
import { config, rates, snapshot, stall, worker } from "./builders";
import table from "./diagnosis.json";

interface Case {
  title: string;
  /** Names only what the case is about. */
  evidence: any;
  said: ReturnType<typeof diagnose>;
}

const CASES = table as unknown as Case[];
const COMPUTING = { compute: 1, starvation: 0, reorder_stall: 0, pin_wait: 0, paused: 0, startup: 0, sampler: 0 };

function evidence(some: Case["evidence"]): Evidence {
  const { workers, epoch_times, ...rest } = some.snapshot ?? {};
  return {
    snapshot: snapshot({
      ...rest,
      ...(workers === undefined ? {} : { workers: workers.map(worker) }),
      epoch_times: { ...decodeTimes([]), ...epoch_times },
    }),
    config: config(some.config),
    presence: some.presence ?? "connected",
    shares: some.shares === undefined ? COMPUTING : some.shares,
    rates: rates({ batches: 60, busy: 2, workers: 4, ...some.rates }),
    stalls: (some.stalls ?? []).map(stall),
    silence: some.silence ?? 0.2,
    failure: some.failure ?? "",
  };
}

describe("the dashboard says what the terminal says", () => {
  for (const { title, evidence: some, said } of CASES) {
    it(title, () => expect(diagnose(evidence(some))).toEqual(said));
  }
});
