/** Small builders, so that a test names only what it is about. */
import type {
  CommandRecord,
  Config,
  Frame,
  History,
  LoaderRow,
  Queues,
  Rates,
  Snapshot,
  Stall,
  Worker,
} from "../src/live/protocol";
import { decodePinStage, decodeProcessors, decodeQueues, decodeRates, decodeSampleCost, decodeStalls, decodeTimes, RatesFields } from "../src/live/protocol";

export function rates(some: Partial<Rates> = {}): Rates {
  return { ...decodeRates([]), ...some };
}

export function worker(some: Partial<Worker> = {}): Worker {
  return {
    id: 0,
    pid: 100,
    state: "fetching",
    state_ms: 0,
    batch: -1,
    index_queue: 0,
    batches: 0,
    samples: 0,
    sent_kib: 0,
    fetch_us: 0,
    collate_us: 0,
    send_us: 0,
    idle_ms: 0,
    rss: 0,
    cpu_ms: 0,
    queued_ms: 0,
    ...some,
  };
}

export function snapshot(some: Partial<Omit<Snapshot, "queues">> & { queues?: Partial<Queues> } = {}): Snapshot {
  return {
    type: "snapshot",
    seq: 1,
    at: 1000,
    state: "running",
    epoch: 0,
    batch: 100,
    length: 1000,
    batches: 100,
    samples: 6400,
    bytes: 0,
    target: 4,
    pending: null,
    times: decodeTimes([]),
    epoch_times: decodeTimes([]),
    stalls: decodeStalls([]),
    pin: decodePinStage([]),
    cost: decodeSampleCost([]),
    processors: decodeProcessors([]),
    tuned: null,
    bad: 0,
    quarantined: [],
    workers: [0, 1, 2, 3].map((id) => worker({ id, pid: 100 + id, batch: 101 + id })),
    digest: "",
    recoveries: 0,
    dropped: 0,
    slowest: [],
    ...some,
    queues: { ...decodeQueues([]), window: 16, in_flight: 8, ...some.queues },
  };
}

export function config(some: Partial<Config> = {}): Config {
  return {
    dataset: "Set",
    style: "map",
    dataset_length: null,
    batch_size: 64,
    sampler: "RandomSampler",
    num_workers: 4,
    max_workers: 32,
    start_method: "fork",
    pin_memory: false,
    persistent_workers: false,
    in_order: true,
    prefetch_factor: null,
    timeout: 0,
    memory_budget: 0,
    control: true,
    local: null,
    engine: "penstock",
    kind: "",
    unknown: [],
    ...some,
  };
}

export function row(some: Partial<LoaderRow> & { run?: string; name?: string; rank?: number } = {}): LoaderRow {
  const { run = "run", name = "train", rank = 0, ...rest } = some;
  return {
    id: `${run}:${rank}:${name}`,
    identity: { run, name, rank, world_size: 1, host: "host", pid: 1, incarnation: "a" },
    presence: "connected",
    state: "running",
    seen: 1000,
    started: 900,
    epoch: 0,
    batch: 0,
    length: null,
    workers: 4,
    target: 4,
    rates: rates({ compute: 1 }),
    control: true,
    engine: "penstock",
    refuses: "",
    errors: 0,
    error: "",
    hang_us: 0,
    place: "shown",
    unknown: [],
    waiting: 0,
    waits_for: null,
    verdict: { tone: "plain", verdict: "", sentence: "", advice: "", limit: "none", stage: null, waiting: null, workers: null, offer: "", brings: null, brings_low: null, brings_high: null, line: null },
    ...rest,
  };
}

let stalls = 0;

export function stall(some: Partial<Stall> = {}): Stall {
  return {
    kind: "stall",
    at: 990 + stalls++,
    us: 800_000,
    held_back: 9,
    epoch: 0,
    batch: 100,
    worker: 2,
    slowest_index: "91723",
    slowest_us: 790_000,
    stack: "",
    brief: "",
    silence: "",
    ongoing: false,
    cause: "reorder_stall",
    ...some,
  };
}

export function command(some: Partial<CommandRecord> = {}): CommandRecord {
  return {
    id: "c1",
    loader: "run:0:train",
    action: "resize",
    by: "laptop",
    origin: "127.0.0.1",
    state: "accepted",
    transitions: [{ state: "accepted", at: 1000 }],
    group: "",
    workers: 6,
    resume_after: null,
    seconds: null,
    rate: null,
    on: null,
    worker: null,
    before: 2,
    actual: null,
    at_batch: null,
    took_us: 0,
    reason: "",
    phase: "asked",
    head: "",
    text: "",
    ...some,
  };
}

export function history(at: number[], batches: number[], some: Partial<History> = {}): History {
  const mean = Object.fromEntries(RatesFields.map((key) => [key, at.map(() => 0)]));
  return {
    loader: "run:0:train",
    start: at[0] ?? 0,
    end: at[at.length - 1] ?? 0,
    step: 0,
    at,
    mean: { ...mean, batches },
    low: {},
    high: {},
    ...some,
  };
}

export function frame(some: Partial<Omit<Frame, "snapshot">> & { snapshot?: Parameters<typeof snapshot>[0] } = {}): Frame {
  const { verdict, rates: recent } = row();
  return {
    type: "frame",
    loader: "run:0:train",
    rates: recent,
    presence: "connected",
    at: 1000,
    verdict,
    recent,
    workers: [],
    pin_busy: 0,
    pin_us: null,
    machines: [],
    ...some,
    snapshot: snapshot(some.snapshot),
  };
}
