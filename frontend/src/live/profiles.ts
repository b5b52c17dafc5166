import type { ProfileFunction, ProfilePart, ProfileWeights } from "./protocol";

export type Phase = ProfileWeights["phase"];
export const PHASES: readonly Phase[] = ["fetch", "collate", "send"];

/** The time that was seen at nodes of one worker in one phase: node → ms. */
interface Weights {
  worker: number;
  phase: Phase;
  wall: Map<number, number>;
  processor: Map<number, number>;
}

/** One profile as far as it has come: its call tree, put together from its parts. */
export class CallTree {
  readonly id: string;
  readonly began: number;
  readonly rate: number;
  seconds = 0;
  ended = false;
  /** The part that comes next. */
  next = 0;
  readonly functions: ProfileFunction[] = [];
  /** Parallel columns; node 0 is the root. Every node comes after its caller. */
  readonly callers: number[] = [-1];
  readonly called: number[] = [-1];
  readonly lines: number[] = [0];
  readonly #weights = new Map<string, Weights>();
  /** Worker → ms in which it had nothing to do. */
  readonly idle = new Map<number, number>();

  constructor(part: ProfilePart) {
    this.id = part.profile;
    this.began = part.began;
    this.rate = part.rate;
  }

  /** Add the part that is next; others are ignored. Returns whether it was. */
  add(part: ProfilePart): boolean {
    if (part.part !== this.next) return false;
    this.next += 1;
    this.seconds = part.seconds;
    this.ended = part.ended;
    this.functions.push(...part.functions);
    for (let place = 0; place + 2 < part.nodes.length; place += 3) {
      this.callers.push(part.nodes[place] as number);
      this.called.push(part.nodes[place + 1] as number);
      this.lines.push(part.nodes[place + 2] as number);
    }
    for (const { worker, phase, nodes, wall_ms, processor_ms } of part.weights) {
      const into = this.#of(worker, phase);
      nodes.forEach((node, place) => {
        into.wall.set(node, (into.wall.get(node) ?? 0) + (wall_ms[place] ?? 0));
        into.processor.set(node, (into.processor.get(node) ?? 0) + (processor_ms[place] ?? 0));
      });
    }
    for (const [worker, ms] of part.idle_ms) this.idle.set(worker, (this.idle.get(worker) ?? 0) + ms);
    return true;
  }

  get workers(): number[] {
    return [...new Set([...this.#weights.values()].map(({ worker }) => worker))].sort((a, b) => a - b);
  }

  /** ms seen just at each node, of all workers and phases or of one. */
  own(clock: "wall" | "processor", phase: Phase | null, worker: number | null): Float64Array {
    const own = new Float64Array(this.callers.length);
    for (const weights of this.#weights.values()) {
      if ((phase !== null && weights.phase !== phase) || (worker !== null && weights.worker !== worker)) continue;
      for (const [node, ms] of weights[clock]) own[node] = (own[node] ?? 0) + ms;
    }
    return own;
  }

  #of(worker: number, phase: Phase): Weights {
    const key = `${worker} ${phase}`;
    let weights = this.#weights.get(key);
    if (weights === undefined) {
      weights = { worker, phase, wall: new Map(), processor: new Map() };
      this.#weights.set(key, weights);
    }
    return weights;
  }
}

/** The profiles that are kept on the page. */
const MOST = 20;

/** Profiles in the order in which they began. Parts may come twice, live and from the past: each counts once. */
export class ProfileLog {
  readonly trees: CallTree[] = [];
  readonly #early = new Map<string, ProfilePart>();

  /** Returns whether anything is new. */
  add(part: ProfilePart): boolean {
    let tree = this.trees.find(({ id }) => id === part.profile);
    if (tree === undefined && part.part === 0) {
      tree = new CallTree(part);
      this.trees.push(tree);
      this.trees.sort((a, b) => a.began - b.began);
      this.trees.splice(0, this.trees.length - MOST);
    }
    if (tree === undefined || part.part > tree.next) {
      this.#early.set(`${part.profile} ${part.part}`, part);
      if (this.#early.size > 500) this.#early.clear();
      return false;
    }
    let fresh = tree.add(part);
    for (;;) {
      const key = `${tree.id} ${tree.next}`;
      const waiting = this.#early.get(key);
      if (waiting === undefined) return fresh;
      this.#early.delete(key);
      fresh = tree.add(waiting) || fresh;
    }
  }
}
