/**
 * Is data the problem, and which stage is? Said in words, from what is measured.
 *
 * The argument, once: training waits only in `next()`, and every wait has one kind. Starvation means that nothing
 * is finished: either all workers are busy or tasks wait for them (they are the limit), or they are idle though the
 * window has room (whoever hands out tasks is the limit), or the window is full (it is too small for so slow a sample).
 * A reorder stall means that batches are finished but an earlier one is not: one slow batch is the limit. A pin
 * wait means that the next batch is finished but not through the pin stage. But if the workers never idle, they are
 * the limit, whatever the kind of waiting: behind any other limit the window fills and they run out of tasks. If
 * training hardly waits, it is itself the limit, and more workers would change nothing.
 */

import { age, count, micros, percent, plural } from "../format";
import { knows } from "./known";
import { alive, awaited, type StageId } from "./pipeline";
import type { Config, LoaderRow, Rates, Snapshot, Stall } from "./protocol";
import { type Shares, sharesOfTimes, waitingShare } from "./shares";

export interface Evidence {
  snapshot: Snapshot;
  config: Config;
  presence: LoaderRow["presence"];
  /** Over the last 10 s, as the rates are; null while no time has passed in an epoch. */
  shares: Shares | null;
  /** Means over the last 10 s. */
  rates: Rates;
  /** Stalls of the last minute. */
  stalls: readonly Stall[];
  /** Seconds since the newest data. */
  silence: number;
  /** Why the last epoch failed, if it did. */
  failure: string;
}

export interface Diagnosis {
  tone: "good" | "warn" | "bad" | "plain";
  verdict: string;
  sentence: string;
  /** What to do about it; empty if nothing. */
  advice: string;
  /** The stage that limits; null if there is none to name. */
  limit: StageId | null;
}

/** Below this share of waiting, data is not the problem. */
export const HARMLESS = 0.05;
/** From this share on it is the main one. */
export const SEVERE = 0.3;
/** Workers busier than this have nothing to spare. */
const SATURATED = 0.8;
/** Workers busier than this never idle. */
const NEVER_IDLE = 0.92;
/** Shorter stalls (µs) are not worth naming. */
const NAMEABLE_STALL = 100_000;

export function diagnose(evidence: Evidence): Diagnosis {
  return ended(evidence) ?? suspended(evidence) ?? running(evidence);
}

function plain(verdict: string, sentence: string, advice = ""): Diagnosis {
  return { tone: "plain", verdict, sentence, advice, limit: null };
}

function ended({ snapshot, presence, failure, silence }: Evidence): Diagnosis | null {
  if (snapshot.state === "failed") {
    const reason = failure.trim() === "" ? "The loader gave no reason." : failure.trim().split("\n", 1)[0];
    return { ...plain("Failed.", `Epoch ${snapshot.epoch} ended in an error. ${reason}`), tone: "bad" };
  }
  const done = `${plural(snapshot.batches, "batch", "batches")} in ${plural(snapshot.epoch + 1, "epoch")}`;
  if (presence === "finished" || snapshot.state === "closed") {
    return plain("Finished.", `The loader said goodbye after ${done}. ${lastEpoch(snapshot)}`);
  }
  if (presence === "lost") {
    return {
      ...plain(
        "Lost.",
        `Nothing has been heard for ${age(silence)}, and the loader did not say goodbye: its process was killed or cut off.`,
      ),
      tone: "bad",
    };
  }
  if (snapshot.state === "finished") {
    return plain("Between epochs.", `Epoch ${snapshot.epoch} has ended. ${lastEpoch(snapshot)}`);
  }
  if (snapshot.state === "idle") return plain("Idle.", "No epoch is under way.");
  return null;
}

function lastEpoch(snapshot: Snapshot): string {
  const shares = sharesOfTimes(snapshot.epoch_times);
  return shares === null ? "" : `In the last epoch training waited ${percent(waitingShare(shares))} of the time.`;
}

function suspended({ snapshot }: Evidence): Diagnosis | null {
  if (snapshot.state === "paused") {
    const ready = snapshot.queues.data;
    const left = ready > 0 ? `${plural(ready, "batch is", "batches are")} still ready.` : "Nothing is ready: training waits.";
    return plain("Paused.", `No new task is taken up. ${left}`);
  }
  if (snapshot.batch === 0 && snapshot.queues.data === 0 && snapshot.queues.pin === 0) {
    return plain("Starting.", "The epoch's first batch is not finished yet.");
  }
  return null;
}

function running(evidence: Evidence): Diagnosis {
  const { shares, snapshot } = evidence;
  if (shares === null) return plain("Measuring.", "Not enough data yet to say what limits.");
  const waiting = waitingShare(shares);
  const waited = `In the last 10 s training waited ${percent(waiting)} of the time.`;
  if (waiting < HARMLESS) return computeBound(evidence, waited);
  const cause = causeOf(evidence);
  return {
    tone: waiting >= SEVERE ? "bad" : "warn",
    verdict: waiting >= SEVERE ? "Data-bound." : "Partly data-bound.",
    sentence: [waited, cause.sentence, culprit(snapshot, evidence.stalls)].filter(Boolean).join(" "),
    advice: cause.advice,
    limit: cause.limit,
  };
}

function computeBound({ snapshot, rates }: Evidence, waited: string): Diagnosis {
  const workers = alive(snapshot);
  const busy = workers > 0 ? rates.busy / workers : 0;
  const enough = Math.max(1, Math.ceil(rates.busy * 1.25));
  const spare = workers >= 2 && busy < 0.5 && enough < workers && knows(snapshot, "workers.fetch_us");
  return {
    tone: "good",
    verdict: "Compute-bound.",
    sentence: `${waited} Batches are ready before they are asked for: data is not the limit, training is.`,
    advice: spare
      ? `The ${workers} workers are busy ${percent(busy)} of the time; ${enough === 1 ? "one" : count(enough)} would do.`
      : "",
    limit: "training",
  };
}

interface Cause {
  sentence: string;
  advice: string;
  limit: StageId | null;
}

function causeOf(evidence: Evidence): Cause {
  const shares = evidence.shares as Shares;
  const kinds = ["starvation", "reorder_stall", "pin_wait", "startup", "sampler"] as const;
  const main = kinds.reduce((worst, kind) => (shares[kind] > shares[worst] ? kind : worst));
  const { snapshot, rates, config } = evidence;
  const workers = alive(snapshot);
  if ((main === "reorder_stall" || main === "pin_wait") && workers > 0 && rates.busy / workers >= NEVER_IDLE) {
    return {
      sentence: `${all(workers)} busy all the time: the workers are the limit.`,
      advice: enoughWorkers(rates, shares, workers, config),
      limit: "workers",
    };
  }
  if (!knows(snapshot, "workers")) {
    const waits = main === "startup" ? "for an epoch's first batch" : "for the next batch";
    return { sentence: `Most of the waiting is ${waits}; what makes it is not seen from outside.`, advice: "", limit: null };
  }
  switch (main) {
    case "starvation":
      return starvation(evidence, shares);
    case "reorder_stall":
      return {
        sentence: "Batches are finished, but an earlier one is not: single slow batches are the limit.",
        advice: evidence.config.in_order ? "Look at the slowest samples below; more workers help only a little." : "",
        limit: "reorder",
      };
    case "pin_wait":
      return {
        sentence: "Batches are finished but not through the pin stage: pinning is the limit.",
        advice: "Smaller batches or cheaper types (uint8 instead of float32) would help; more workers would not.",
        limit: "pin",
      };
    case "sampler":
      return {
        sentence: "Training waits for the sampler, which runs in its own thread: the sampler is the limit.",
        advice: "A sampler that costs less for an index would help; more workers would not.",
        limit: "sampler",
      };
    case "startup":
      return {
        sentence: "Most of the waiting is for an epoch's first batch.",
        advice: evidence.config.persistent_workers ? "" : "persistent_workers=True keeps the workers between epochs.",
        limit: "workers",
      };
  }
}

function all(workers: number): string {
  if (workers === 1) return "The one worker is";
  return workers === 2 ? "Both workers are" : `All ${count(workers)} workers are`;
}

function starvation({ snapshot, rates, config }: Evidence, shares: Shares): Cause {
  const workers = alive(snapshot);
  if (workers === 0) {
    return {
      sentence: "The dataset is read in the training thread itself: there are no workers.",
      advice: "num_workers=1 or more would read ahead.",
      limit: "workers",
    };
  }
  const more = "More workers would help, as far as there are cores for them.";
  if (config.engine === "torch") {
    return { sentence: "Nothing is finished ahead: the workers are the limit.", advice: more, limit: "workers" };
  }
  const busy = rates.busy / workers;
  if (busy >= SATURATED) {
    return {
      sentence: `${all(workers)} busy and nothing is finished ahead: the workers are the limit.`,
      advice: enoughWorkers(rates, shares, workers, config),
      limit: "workers",
    };
  }
  const { in_flight, index, window } = snapshot.queues;
  // A pause, a gap between epochs or a smaller pool may be among the 10 s in which workers were busy.
  if (index > 0) {
    return { sentence: "Tasks wait for workers and nothing is finished ahead: the workers are the limit.", advice: more, limit: "workers" };
  }
  if (window > 0 && in_flight >= window) {
    return {
      sentence: `The workers are busy only ${percent(busy)} of the time, and the window is full (${count(in_flight)} in flight).`,
      advice: "A larger memory_budget would let more batches be made ahead.",
      limit: "index",
    };
  }
  return {
    sentence: `Nothing is finished, yet the workers are busy only ${percent(busy)} of the time: too few tasks reach them.`,
    advice: "Look at the sampler: it runs in the training thread.",
    limit: "sampler",
  };
}

/**
 * Workers that would keep training fed: it takes a batch every compute/batches seconds, and each batch costs
 * busy/batches worker-seconds. More than fourfold growth is not promised: something else will limit first.
 */
function enoughWorkers(rates: Rates, shares: Shares, workers: number, config: Config): string {
  const active = 1 - shares.paused;
  if (!(shares.compute > 0.02 * active) || !(rates.busy > 0)) return "More workers would help, as far as there are cores for them.";
  const enough = Math.ceil((rates.busy / (shares.compute / active)) * 1.05);
  const most = config.max_workers > 0 ? Math.min(config.max_workers, workers * 4) : workers * 4;
  if (enough <= workers) return "";
  if (enough > most) return `Even ${count(most)} workers would hardly keep up; make single samples cheaper.`;
  return `About ${count(enough)} workers would keep up, if there are cores for them.`;
}

function culprit(snapshot: Snapshot, stalls: readonly Stall[]): string {
  const { reorder } = snapshot.queues;
  const waiting = awaited(snapshot);
  const worst = stalls.reduce<Stall | null>((most, stall) => (most === null || stall.us > most.us ? stall : most), null);
  if (reorder > 1 && waiting !== null && waiting.batch === snapshot.batch) {
    return `Batch ${count(waiting.batch)} on worker ${waiting.worker} is holding back ${count(reorder)} finished batches.`;
  }
  if (worst === null || worst.us < NAMEABLE_STALL) return "";
  const sample = worst.slowest_index ? ` (sample ${worst.slowest_index}: ${micros(worst.slowest_us)})` : "";
  const where = worst.worker >= 0 ? ` on worker ${worst.worker}` : "";
  return `The longest stall was ${micros(worst.us)}, for batch ${count(worst.batch)}${where}${sample}.`;
}
